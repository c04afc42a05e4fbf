"""What commands share: options, values, output, errors."""
