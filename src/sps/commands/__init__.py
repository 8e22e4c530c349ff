"""What people type, one module a command."""
