"""What runs beside the agent: NVML, systemd, container runtimes, programs it starts."""
