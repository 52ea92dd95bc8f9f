"""From bytes to checked rows and back: files, object storage, columns, rejected rows. No torch."""
