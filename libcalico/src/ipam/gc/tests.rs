//! What the parts do together.
