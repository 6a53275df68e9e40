import ApusCore
import CoreMetrics

/// The metrics of a record store.
struct RecordMetrics: Sendable {
    /// Commits that were made durable.
    let commits = Counter(label: "apus_records_commits_total")
    /// Steps of these commits that were made.
    let steps = Counter(label: "apus_records_steps_total")
    /// Steps that were refused by a fence or a condition.
    let conflicts = Counter(label: "apus_records_conflicts_total")
    /// Steps that were refused because too many waited, or the store is nearly full (10007).
    let refused = Counter(label: "apus_records_refused_total")
    /// Commits that failed as a whole (10021).
    let failed = Counter(label: "apus_records_commits_failed_total")
    /// The duration of a commit, including the wait for other processes.
    let duration = CoreMetrics.Timer(label: "apus_records_commit_seconds")
    /// Steps that wait for a commit, as of the last one.
    let waitingSteps = Gauge(label: "apus_records_waiting_steps")
    /// Their bytes.
    let waitingBytes = Gauge(label: "apus_records_waiting_bytes")

    func committed(_ outcomes: [GroupCommit.Outcome], in time: Duration) {
        let madeCount = outcomes.count { outcome in
            if case .success = outcome { true } else { false }
        }
        let fullCount = outcomes.count { outcome in
            if case .failure(let error) = outcome { error.code == .overloaded } else { false }
        }
        commits.increment()
        steps.increment(by: madeCount)
        refused.increment(by: fullCount)
        conflicts.increment(by: outcomes.count - madeCount - fullCount)
        duration.recordNanoseconds(time.nanoseconds)
    }
}
