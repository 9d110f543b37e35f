"""One module per subcommand of hack/bench; `benchlib.registry` lists them and says what each must offer."""
