/// A run of a simulated cluster, or of something on it, and what came of it.
package protocol SimulationRun {
    var cluster: ClusterSimulation { get }
    /// The deliberate error of the run, as it is named in reports.
    var mutantName: String { get }
}

extension SimulationRun {
    package var isFailed: Bool { cluster.isFailed }
    /// The failures of the run and how to repeat it.
    package var report: String {
        "seed \(cluster.seed) (\(cluster.profile.rawValue), a node that \(mutantName)): "
            + cluster.failures.joined(separator: "; ")
    }
    package var story: [String] { cluster.story }
    package var traceHash: UInt64 { cluster.traceHash }
    package var eventCount: Int { cluster.eventCount }
    /// The time from the last fault until everything was stable.
    package var settleTime: Duration { cluster.settleTime }
    package var deathCount: Int { cluster.deathCount }
    package var killCount: Int { cluster.killCount }
    package var handoverCount: Int { cluster.handoverCount }
}
