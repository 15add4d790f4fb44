//! The model of one GPU with several jobs: the p99 latency of its services and the speed of its batch jobs, in closed form.
//!
//! ```text
//!   request arrives ──► waits for lower priorities ──► waits for earlier requests ──► runs ──► done
//!                       (by level, or a time slice)    (an M/G/1 queue)               (interleaved with equals)
//! ```
//!
//! **Services** receive requests of one length at random (or periodic) times. The wait for earlier requests is that of an
//! M/G/1 queue: a gamma distribution with the exact first two moments, and the exact probability to wait at all. Services of
//! higher priority take their load off the GPU's capacity (preemptive resume). A request of equal priority delays another one
//! by at most as many time slices as that one needs itself.
//!
//! **Batch jobs** alternate between using the GPU and not using it; `utilization` is the part of the first. Their speed is
//! that of a closed queueing network with one processor-sharing station (exact mean value analysis, for exponential times). A
//! batch job delays requests with the probability that it uses the GPU.
//!
//! Jobs of a lower priority see a slower GPU: what the higher ones use is missing.

use super::costs::{Costs, Sharing};
use super::quantile::gamma_upper;

/// The maximum number of jobs on one GPU: the mean value analysis takes time exponential in it.
pub const MAX_JOBS_PER_GPU: usize = 6;
/// The quantile that the model predicts is the 99th percentile.
const TAIL: f64 = 0.01;
/// The speed of a batch job that others starve.
const STARVED: f64 = 1e-6;

/// One job on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tenant {
    /// Higher preempts lower.
    pub priority: i16,
    /// What it does.
    pub load: Load,
}

/// What a job does with a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// It computes until it has finished.
    Batch {
        /// The part of the time in which it uses the GPU when it is alone, more than 0 and at most 1.
        utilization: f64,
    },
    /// It answers requests.
    Service {
        /// Requests per second.
        rate: f64,
        /// Device time of a request, in seconds.
        request_s: f64,
        /// Requests arrive at equal intervals, not at random.
        is_periodic: bool,
    },
}

impl Default for Load {
    fn default() -> Self {
        Self::Batch { utilization: 1.0 }
    }
}

impl Tenant {
    /// The part of the GPU's time that it uses when it is alone.
    #[must_use]
    pub fn demand(&self) -> f64 {
        match self.load {
            Load::Batch { utilization } => utilization,
            Load::Service { rate, request_s, .. } => rate * request_s,
        }
    }
}

/// The prediction for one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// For each job in the order given: of a batch job, its speed as a part of its speed alone; of a service, its p99 latency
    /// as a multiple of its p99 latency alone, infinite if it cannot keep up.
    pub values: [f64; MAX_JOBS_PER_GPU],
    /// The part of the GPU's time that jobs use.
    pub utilization: f64,
}

/// Predicts what happens to `tenants` on one GPU. Considers the first [`MAX_JOBS_PER_GPU`] of them.
#[must_use]
pub fn predict(costs: &Costs, tenants: &[Tenant]) -> Prediction {
    let tenants = &tenants[..tenants.len().min(MAX_JOBS_PER_GPU)];
    let mut prediction = Prediction::default();
    if let [only] = tenants {
        prediction.values[0] = 1.0;
        prediction.utilization = only.demand();
        return prediction;
    }
    let mut services = 0.0;
    for (index, tenant) in tenants.iter().enumerate() {
        if let Load::Service { rate, request_s, is_periodic } = tenant.load {
            let request = Request { rate, length: request_s, is_periodic };
            let alone = request.length + own_queue(request).p99();
            prediction.values[index] = p99(costs, tenants, index, request) / alone;
            services += tenant.demand();
        }
    }
    prediction.utilization = (services + batch_speeds(costs, tenants, &mut prediction.values)).min(1.0);
    prediction
}

/// The p99 latency of a service alone on a GPU, in seconds.
#[must_use]
pub fn p99_alone_s(rate: f64, request_s: f64, is_periodic: bool) -> f64 {
    let request = Request { rate, length: request_s, is_periodic };
    request.length + own_queue(request).p99()
}

#[derive(Clone, Copy)]
struct Request {
    rate: f64,
    length: f64,
    is_periodic: bool,
}

/// Moments of the work that arrives in front of a request, for an M/G/1 queue.
#[derive(Clone, Copy, Default)]
struct Queue {
    load: f64,
    second: f64,
    third: f64,
    /// The load of higher priorities, and its part of `second`.
    higher: f64,
    higher_second: f64,
    /// Requests that interrupt a request while it runs: their expected number, and moments of the time they take.
    interruptions: [f64; 3],
}

impl Queue {
    fn add(&mut self, rate: f64, length: f64) {
        self.load += rate * length;
        self.second += rate * length * length;
        self.third += rate * length * length * length;
    }

    fn interrupt(&mut self, expected: f64, length: f64) {
        self.interruptions[0] += expected;
        self.interruptions[1] += expected * length;
        self.interruptions[2] += expected * length * length;
    }

    fn is_stable(&self) -> bool {
        self.load < 0.999
    }

    /// The delay by other requests, before the start and after it: its mean and its p99.
    fn wait(&self) -> (f64, f64) {
        let [expected, first, second] = self.interruptions;
        // A request is not delayed if it finds none and none interrupts it.
        let delayed = 1.0 - (1.0 - self.load) * (-expected).exp();
        if delayed <= 0.0 {
            return (0.0, 0.0);
        }
        // Preemptive resume: the GPU is slower by the load of higher priorities, and each of their interruptions is a busy
        // period of theirs.
        let (free, lower) = (1.0 - self.load, 1.0 - self.higher);
        let before = self.second / (2.0 * lower * free);
        let before_second = self.third / (3.0 * lower * lower * free)
            + self.second * self.second / (2.0 * lower * lower * free * free)
            + self.higher_second * self.second / (2.0 * lower * lower * lower * free);
        let variance = before_second - before * before + second / (lower * lower * lower);
        let mean = before + first / lower;
        // Of the requests that are delayed.
        let own_mean = mean / delayed;
        let own_variance = (variance + mean * mean) / delayed - own_mean * own_mean;
        let tail = TAIL / delayed;
        let p99 = if tail >= 1.0 { 0.0 } else { gamma_upper(own_mean, own_variance.max(0.0), tail) };
        (mean, p99)
    }

    fn p99(&self) -> f64 {
        self.wait().1
    }
}

/// The queue of a service alone. Periodic requests do not wait for each other.
fn own_queue(request: Request) -> Queue {
    let mut queue = Queue::default();
    if !request.is_periodic {
        queue.add(request.rate, request.length);
    }
    queue
}

/// The p99 latency of the service at `index`, in seconds.
fn p99(costs: &Costs, tenants: &[Tenant], index: usize, own: Request) -> f64 {
    let has_priorities = costs.sharing == Sharing::Priority;
    let slices = (own.length / costs.slice_s).ceil().max(1.0);
    let (mut queue, mut equal_services) = (Queue::default(), 0.0);
    // Batch jobs of equal and of lower priority: how many use the GPU on average, and the probability that none does.
    let (mut equals, mut no_equal, mut no_lower) = (0.0, 1.0, 1.0);
    for (other, tenant) in tenants.iter().enumerate().filter(|(other, _)| *other != index) {
        let above =
            if has_priorities { i32::from(tenant.priority) - i32::from(tenants[index].priority) } else { 0 };
        match tenant.load {
            Load::Batch { utilization } if above > 0 && utilization > TAIL => return f64::INFINITY,
            Load::Batch { utilization } if above < 0 => no_lower *= 1.0 - utilization,
            Load::Batch { utilization } => {
                equals += utilization;
                no_equal *= 1.0 - utilization;
            }
            // Its requests are lower too: one of them is on the GPU with the probability of its load.
            Load::Service { .. } if above < 0 => no_lower *= 1.0 - tenants[other].demand().min(1.0),
            Load::Service { rate, request_s, .. } if above > 0 => {
                let length = request_s + costs.preemption_s;
                queue.add(rate, length);
                queue.higher += rate * length;
                queue.higher_second += rate * length * length;
                queue.interrupt(rate * own.length, length);
            }
            Load::Service { rate, request_s, .. } => {
                let length = request_s.min(slices * costs.slice_s) + 2.0 * costs.switch_s;
                queue.add(rate, length);
                equal_services += rate * length;
                // Within its last slice it is not interrupted.
                queue.interrupt(rate * (own.length - own.length / slices), length);
            }
        }
    }
    if queue.higher >= 0.999 || equal_services >= 0.999 {
        return f64::INFINITY;
    }
    // Between two slices of its own, each equal batch job has one. While requests queue, the service has its part of the
    // GPU; a single request ends with the last slice that it needs.
    let p_equal = 1.0 - no_equal;
    let active = if p_equal > 0.0 { equals / p_equal } else { 0.0 };
    let round = active * (costs.slice_s + costs.switch_s) + costs.switch_s;
    let with_equals = if p_equal > TAIL { (slices - 1.0) * round } else { 0.0 };
    let mean_length = own.length * (1.0 + p_equal * round / costs.slice_s);
    if own.rate * mean_length + queue.load >= 0.999 {
        return f64::INFINITY;
    }
    if !own.is_periodic {
        queue.add(own.rate, mean_length);
    }
    if !queue.is_stable() {
        return f64::INFINITY;
    }
    // The wait before its first slice: any time of a round of the equals, or what its level cannot stop. The p99 of a wait
    // that happens with probability p is a lower quantile of the wait itself.
    let quantile = |p: f64| ((p - TAIL) / p / (1.0 - TAIL)).clamp(0.0, 1.0);
    let (mut mean, mut tail) = (0.0, 0.0);
    if p_equal > TAIL {
        let turn = round - costs.switch_s;
        mean += p_equal * (0.5 * turn + costs.switch_s);
        tail += quantile(p_equal) * turn + costs.switch_s;
    }
    let p_lower = 1.0 - no_lower;
    if p_lower > TAIL {
        mean += p_lower * costs.wait.mean_s;
        tail += costs.wait.mean_s + quantile(p_lower) * (costs.wait.p99_s - costs.wait.mean_s);
    }
    let (queue_mean, queue_tail) = queue.wait();
    let rare = (tail - mean).max(0.0).hypot((queue_tail - queue_mean).max(0.0));
    own.length + with_equals + mean + queue_mean + rare
}

/// The speeds of the batch jobs. Returns the part of the GPU's time that they use.
fn batch_speeds(costs: &Costs, tenants: &[Tenant], values: &mut [f64; MAX_JOBS_PER_GPU]) -> f64 {
    let has_priorities = costs.sharing == Sharing::Priority;
    let has_service = tenants.iter().any(|tenant| matches!(tenant.load, Load::Service { .. }));
    let mut used = 0.0;
    let mut group = [0_usize; MAX_JOBS_PER_GPU];
    let mut is_done = [false; MAX_JOBS_PER_GPU];
    // Higher priorities first: the speed of the others depends on theirs.
    while let Some(tenant) = (tenants.iter().zip(is_done))
        .filter(|(tenant, is_done)| !is_done && matches!(tenant.load, Load::Batch { .. }))
        .map(|(tenant, _)| tenant)
        .max_by_key(|tenant| if has_priorities { tenant.priority } else { 0 })
    {
        let is_equal = |other: &Tenant| !has_priorities || other.priority == tenant.priority;
        let mut members = 0;
        let mut capacity = 1.0;
        for (other, job) in tenants.iter().enumerate() {
            match job.load {
                Load::Batch { .. } if is_equal(job) => {
                    group[members] = other;
                    is_done[other] = true;
                    members += 1;
                }
                Load::Batch { utilization } if job.priority > tenant.priority => {
                    capacity -= utilization * values[other].min(1.0);
                }
                Load::Service { rate, request_s, .. } if !has_priorities || is_equal(job) => {
                    // It is switched to and from for each of its time slices.
                    let slices = (request_s / costs.slice_s).ceil().max(1.0);
                    capacity -= rate * (request_s + 2.0 * slices * costs.switch_s);
                }
                Load::Service { rate, request_s, .. } if job.priority > tenant.priority => {
                    // A request that arrives while another one runs preempts nothing.
                    let preemptions = rate * (1.0 - rate * request_s).max(0.0);
                    capacity -= rate * request_s + preemptions * costs.preemption_s;
                }
                _ => {}
            }
        }
        if members > 1 {
            capacity /= 1.0 + costs.switch_s / costs.slice_s;
        }
        let efficiency = if has_priorities && has_service { costs.batch_efficiency } else { 1.0 };
        let mut speeds = closed_network(tenants, &group[..members], capacity.max(STARVED));
        if has_priorities && has_service && members > 1 {
            share_fairly(tenants, &group[..members], &mut speeds);
        }
        for (member, speed) in group[..members].iter().zip(speeds) {
            values[*member] = (speed * efficiency).max(STARVED);
            used += tenants[*member].demand() * values[*member];
        }
    }
    used
}

/// The speed of each of `group` on a processor-sharing station of this capacity: exact mean value analysis over the subsets
/// of the group, smaller ones first.
fn closed_network(tenants: &[Tenant], group: &[usize], capacity: f64) -> [f64; MAX_JOBS_PER_GPU] {
    if let [only] = group {
        let utilization = tenants[*only].demand();
        return [1.0 / (1.0 - utilization + utilization / capacity); MAX_JOBS_PER_GPU];
    }
    let mut queued = [[0.0_f64; MAX_JOBS_PER_GPU]; 1 << MAX_JOBS_PER_GPU];
    let mut speeds = [0.0; MAX_JOBS_PER_GPU];
    for subset in 1_usize..1 << group.len() {
        for (member, tenant) in group.iter().enumerate().filter(|(member, _)| subset >> member & 1 == 1) {
            let utilization = tenants[*tenant].demand();
            let seen: f64 = queued[subset & !(1 << member)][..group.len()].iter().sum();
            let response = utilization / capacity * (1.0 + seen);
            let speed = 1.0 / (1.0 - utilization + response);
            queued[subset][member] = speed * response;
            speeds[member] = speed;
        }
    }
    speeds
}

/// Distributes the time that a group uses so that the least served has most: below a service, the job that has had least
/// device time has the next slice.
fn share_fairly(tenants: &[Tenant], group: &[usize], speeds: &mut [f64; MAX_JOBS_PER_GPU]) {
    let demand = |member: usize| tenants[group[member]].demand();
    let mut left: f64 = (0..group.len()).map(|member| demand(member) * speeds[member]).sum();
    let mut is_served = [false; MAX_JOBS_PER_GPU];
    for served in 0..group.len() {
        // The smallest demand that is not served yet has its part, or all it can use.
        let next = (0..group.len()).filter(|member| !is_served[*member]);
        let Some(member) = next.min_by(|a, b| demand(*a).total_cmp(&demand(*b))) else { return };
        is_served[member] = true;
        let part = (left / (group.len() - served) as f64).min(demand(member));
        speeds[member] = part / demand(member);
        left -= part;
    }
}
