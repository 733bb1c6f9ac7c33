//! Tests of verifying.
