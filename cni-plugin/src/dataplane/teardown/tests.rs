//! Tests of the teardown.
