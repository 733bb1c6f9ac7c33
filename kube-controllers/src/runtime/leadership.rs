//! The right to write.

use tokio::sync::watch;

/// Whether this replica leads. Feeds and caches run always; writes only while it does.
#[derive(Debug, Clone)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
}

impl Leadership {
    /// The election tells through `leads`.
    pub fn new(leads: watch::Receiver<bool>) -> Self {
        Leadership { leads }
    }

    /// Leads for ever: one replica, or a role that may not write Leases.
    pub fn always() -> Self {
        let (sender, leads) = watch::channel(true);
        // The last value stays readable when the sender is gone.
        drop(sender);
        Leadership { leads }
    }

    /// Whether writes are allowed now. Ask right before each.
    pub fn holds(&self) -> bool {
        *self.leads.borrow()
    }

    /// Waits until this replica leads.
    pub async fn gained(&mut self) {
        if self.leads.wait_for(|leads| *leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&mut self) {
        if self.leads.wait_for(|leads| !*leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
