//! Tests of tearing down.
