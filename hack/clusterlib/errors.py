"""The one error of the cluster command: what went wrong and what to do next."""


class ClusterError(Exception):
    """A failure the user can act on.

    `exit_code` follows the project's convention: 1 failed, 2 bad input or usage, 3 the answer is no.
    """

    def __init__(self, cause: str, *, next_step: str, exit_code: int = 1) -> None:
        super().__init__(f"{cause}\n  next: {next_step}")
        self.exit_code = exit_code
