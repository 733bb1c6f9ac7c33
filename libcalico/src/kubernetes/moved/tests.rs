use serde_json::json;

use super::*;
use crate::migration::moved_kinds;

const UID: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";
const REVERSED: &str = "fe392417-dc50-4cba-9ef8-45cd23ab67ef";

fn kind(name: &str) -> MovedKind {
    moved_kinds().into_iter().find(|kind| kind.v3.kind == name).unwrap()
}

fn moved(name: &str, v1: Value) -> Moved {
    to_v3(&kind(name), v1).unwrap()
}
