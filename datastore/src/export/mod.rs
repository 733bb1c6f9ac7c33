//! Export and import: all pairs of a datastore as text, with the values byte for byte.
//!
//! The text is JSON Lines. The first line names the format and the number of pairs, so that a truncated file is
//! detected. Each other line is one pair:
//!
//! ```text
//! {"format":"calico-export","version":1,"pairs":2}
//! {"key":"/calico/ipam/v2/config","value":{"strict_affinity":true}}
//! {"key":"/calico/v1/Ready","text":"true\n"}
//! ```
//!
//! `value` contains the stored bytes unchanged. A stored value that is not JSON on a single line becomes `text`, and a
//! value that is not UTF-8 becomes `base64`.

mod format;
mod transfer;

pub use format::TransferError;
pub use transfer::{ImportSummary, OnExisting, export, import};
