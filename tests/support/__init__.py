"""What black-box tests stand on: a real `timerd serve`, and a recording processor."""
