"""From text files to token stores."""
