//! All feeds of the process.

use datastore::watch::Watch;
use libcalico::api::Node as CalicoNode;
use libcalico::api::{HostEndpoint, IpPool, IpReservation, KubeControllersConfiguration, Tier, WorkloadEndpoint};
use libcalico::ipam::Block;
use libcalico::store::Entry;

use super::running::{Running, follow};
use super::{Feed, kubernetes};
use crate::context::Context;
use crate::watched::{Machine, MachineInstance, Namespace, NetworkPolicy, Node, Pod, Service, ServiceAccount, Wanted};

/// One line per kind: those of Kubernetes' own have a projection, Calico's are whole.
macro_rules! feeds {
    (
        kubernetes { $($(#[$native_doc:meta])* $native:ident: $projection:ty,)* }
        calico { $($(#[$calico_doc:meta])* $calico:ident: $kind:ty,)* }
    ) => {
        /// The feeds that controllers may subscribe to.
        #[derive(Default)]
        pub struct Feeds {
            /// What is kept of objects beyond the usual; controllers say so when they subscribe.
            pub wanted: Wanted,
            $($(#[$native_doc])* pub $native: Feed<$projection>,)*
            $($(#[$calico_doc])* pub $calico: Feed<Entry<$kind>>,)*
        }

        impl Feeds {
            /// Starts the feeds that somebody listens to. They end with `context.stop`.
            pub fn start(self, context: &Context) -> Running {
                let mut running = Running::default();
                $(if self.$native.is_wanted() {
                    let watch = Watch::new(kubernetes::source::<$projection>(context, self.wanted));
                    let meter = watch.meter();
                    running.add(self.$native, meter, |feed| follow(watch, feed, context.clone()));
                })*
                $(if self.$calico.is_wanted()
                    && let Some(watch) = context.calico.watch::<$kind>(&Default::default())
                {
                    let meter = watch.meter();
                    running.add(self.$calico, meter, |feed| follow(watch, feed, context.clone()));
                })*
                running
            }
        }
    };
}

feeds! {
    kubernetes {
        /// Pods.
        pods: Pod,
        /// Nodes.
        nodes: Node,
        /// Namespaces.
        namespaces: Namespace,
        /// Service accounts.
        service_accounts: ServiceAccount,
        /// Network policies.
        network_policies: NetworkPolicy,
        /// Services.
        services: Service,
        /// Virtual machines of KubeVirt, where it is installed.
        machines: Machine,
        /// Running virtual machines of KubeVirt.
        machine_instances: MachineInstance,
    }
    calico {
        /// Blocks.
        blocks: Block,
        /// Pools.
        ip_pools: IpPool,
        /// Reservations.
        ip_reservations: IpReservation,
        /// Calico's nodes.
        calico_nodes: CalicoNode,
        /// Host endpoints.
        host_endpoints: HostEndpoint,
        /// Tiers.
        tiers: Tier,
        /// What controllers are to do.
        configurations: KubeControllersConfiguration,
        /// Endpoints (etcd).
        workload_endpoints: WorkloadEndpoint,
    }
}
