//! [`AddressRequest`]: the pools and addresses that a Service requests.

use std::net::IpAddr;

use libcalico::kubernetes::{IPV4_POOLS, IPV6_POOLS, LOAD_BALANCER_IPS, LoadBalancerRequest};
use libcalico::net::{Cidr, IpVersion};

use super::pools::LoadBalancerPool;
use super::service::LoadBalancerService;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddressRequest {
    /// The requested addresses; empty for any address.
    pub(super) addresses: Vec<IpAddr>,
    /// True if the addresses are from the annotation [`LOAD_BALANCER_IPS`]: no other address is
    /// assigned to the Service then.
    pub(super) is_mandatory: bool,
    /// Ranges of the requested IPv4 pools; empty if the Service requests none.
    pub(super) pools4: Vec<Cidr>,
    /// Ranges of the requested IPv6 pools; empty if the Service requests none.
    pub(super) pools6: Vec<Cidr>,
}

/// Maximum number of characters of a text of a Service in an error.
const MAX_QUOTED: usize = 100;

/// The error of a request. Its texts of the Service are shortened: an annotation may have 256 KiB,
/// and the error is in the log and in an Event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error(
        "{field}: {text:?} is not a JSON list of strings; write [\"A\", \"B\"], with brackets and \
         quotes: {reason}"
    )]
    NoList {
        field: &'static str,
        text: String,
        reason: String,
    },
    #[error("{field}: {text:?} is not an IP address")]
    NoAddress { field: &'static str, text: String },
    #[error("{field}: more than one address of a family, found {text:?}")]
    TooMany { field: &'static str, text: String },
    #[error("{field}: {text:?} is neither the range nor the name of a pool for LoadBalancer")]
    NoPool { field: &'static str, text: String },
    #[error("{field}: the pool {text:?} is not an IPv{wanted} pool")]
    Family {
        field: &'static str,
        text: String,
        wanted: IpVersion,
    },
}

impl AddressRequest {
    pub(super) fn address(&self, version: IpVersion) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|ip| IpVersion::of(*ip) == version)
    }

    pub(super) fn pools(&self, version: IpVersion) -> &[Cidr] {
        match version {
            IpVersion::V4 => &self.pools4,
            IpVersion::V6 => &self.pools6,
        }
    }

    /// Parses the annotations and `spec.loadBalancerIP` of a Service. `spec.loadBalancerIP` counts
    /// only if the annotation [`LOAD_BALANCER_IPS`] contains no address.
    pub(super) fn parse(
        service: &LoadBalancerService,
        pools: &[LoadBalancerPool],
    ) -> Result<Self, RequestError> {
        let LoadBalancerRequest {
            addresses: listed,
            pools4,
            pools6,
            address: named,
            ..
        } = &service.request;
        let mut request = AddressRequest {
            addresses: addresses(listed.as_deref())?,
            is_mandatory: false,
            pools4: ranges(IPV4_POOLS, pools4.as_deref(), IpVersion::V4, pools)?,
            pools6: ranges(IPV6_POOLS, pools6.as_deref(), IpVersion::V6, pools)?,
        };
        request.is_mandatory = !request.addresses.is_empty();
        if let (false, Some(text)) = (request.is_mandatory, named) {
            request
                .addresses
                .push(address("spec.loadBalancerIP", text)?);
        }
        Ok(request)
    }
}

fn addresses(text: Option<&str>) -> Result<Vec<IpAddr>, RequestError> {
    let addresses = list(LOAD_BALANCER_IPS, text)?
        .into_iter()
        .map(|text| address(LOAD_BALANCER_IPS, &text));
    let addresses = addresses.collect::<Result<Vec<IpAddr>, _>>()?;
    let of_family = |version| {
        addresses
            .iter()
            .filter(|ip| IpVersion::of(**ip) == version)
            .count()
    };
    if of_family(IpVersion::V4) > 1 || of_family(IpVersion::V6) > 1 {
        return Err(RequestError::TooMany {
            field: LOAD_BALANCER_IPS,
            text: shortened(text.unwrap_or_default()),
        });
    }
    Ok(addresses)
}

fn ranges(
    field: &'static str,
    text: Option<&str>,
    wanted: IpVersion,
    pools: &[LoadBalancerPool],
) -> Result<Vec<Cidr>, RequestError> {
    let range = |text: String| {
        let named = pools
            .iter()
            .find(|pool| pool.name == text)
            .map(|pool| pool.cidr);
        match text.parse().ok().or(named) {
            None => Err(RequestError::NoPool {
                field,
                text: shortened(&text),
            }),
            Some(cidr) if cidr.version() != wanted => Err(RequestError::Family {
                field,
                text: shortened(&text),
                wanted,
            }),
            Some(cidr) => Ok(cidr),
        }
    };
    list(field, text)?.into_iter().map(range).collect()
}

fn list(field: &'static str, text: Option<&str>) -> Result<Vec<String>, RequestError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    let read = serde_json::from_str(text);
    // The reason may contain the text as well.
    read.map_err(|error| RequestError::NoList {
        field,
        text: shortened(text),
        reason: shortened(&error.to_string()),
    })
}

fn address(field: &'static str, text: &str) -> Result<IpAddr, RequestError> {
    text.parse().map_err(|_| RequestError::NoAddress {
        field,
        text: shortened(text),
    })
}

/// Returns the first [`MAX_QUOTED`] characters of a text.
pub(super) fn shortened(text: &str) -> String {
    cut(text, MAX_QUOTED)
}

/// Returns the first `length` characters of a text.
pub(super) fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
