//! Host endpoints, labels and deletion of nodes, addresses of Services, pools and tiers: the controllers at work on a real
//! API server and etcd (the named cases of upstream's FV suites, spec 6.4 and 6.5).

mod host_endpoints;
mod managers;
mod nodes;
mod pools;
mod scene;
mod services;
mod spoiled;
mod tiers;
