//! Endpoints that cannot be updated at first.

use std::sync::Mutex;

use libcalico::store::StoreError;

use crate::error::IpamError;
use crate::release::{AddressToRelease, Listings};

/// Endpoints whose update fails a number of times. Records the addresses of all calls.
#[derive(Debug)]
pub struct RefusingListings {
    refusals: Mutex<usize>,
    calls: Mutex<Vec<Vec<AddressToRelease>>>,
}

impl RefusingListings {
    /// The first `refusals` updates fail.
    pub fn new(refusals: usize) -> Self {
        RefusingListings {
            refusals: Mutex::new(refusals),
            calls: Mutex::default(),
        }
    }

    /// Returns the addresses of each call.
    pub fn calls(&self) -> Vec<Vec<AddressToRelease>> {
        self.calls.lock().unwrap().clone()
    }
}

impl Listings for RefusingListings {
    async fn unlist(&self, leaving: &[AddressToRelease]) -> Result<(), IpamError> {
        self.calls.lock().unwrap().push(leaving.to_vec());
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals == 0 {
            return Ok(());
        }
        *refusals -= 1;
        let cause = StoreError::Forbidden {
            reason: "no".into(),
        };
        Err(IpamError::StillListed {
            endpoint: "pod ns/a".into(),
            cause,
        })
    }
}
