//! Tests of the verification.
