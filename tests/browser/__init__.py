"""What a browser makes of what fleetmem draws."""
