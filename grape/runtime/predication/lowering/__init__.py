"""How control flow is carried out on the device: by conditional nodes, or by selects."""
