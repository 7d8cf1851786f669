"""AWS: load balancers and CloudWatch."""
