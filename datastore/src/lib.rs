//! datastore
