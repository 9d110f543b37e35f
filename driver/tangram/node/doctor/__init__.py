"""What may be wrong with a node, looked for one by one, each with its cause and what mends it.

Nothing here changes anything. A check is a function that returns checks; one that hangs, as files of a driver
that hangs may, is told so and left behind (`tangram.node.doctor.run`).
"""
