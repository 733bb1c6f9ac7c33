//! What may be written: the rules upstream's clients and API server apply before an object is stored.

mod error;

pub use error::{FieldError, ValidationError};
