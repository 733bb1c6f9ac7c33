//! Tests of upstream's clients: `sequences` and `collections` compare the requests, and
//! `recordings` compares the stored objects with those that upstream left.

mod cluster;
mod collections;
mod races;
mod recorder;
mod recordings;
mod sequences;
