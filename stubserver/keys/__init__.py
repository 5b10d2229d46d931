"""What people write: documents, their keys and conditions, and how mistakes in them are said."""
