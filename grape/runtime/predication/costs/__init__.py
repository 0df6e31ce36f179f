"""What control flow costs on the device, measured and predicted."""
