import ApusCluster
import ApusCore

/// A workload on the simulated cluster besides membership and ownership.
///
/// The simulation notifies it of events of the processes, and calls it where a node's shell calls its other parts.
protocol SimulationWorkload: AnyObject {
    /// A process read the map for the first time, and is about to join.
    func opened(_ process: SimulatedProcess)
    /// A process that was opened uses this map from now on.
    func adopted(_ map: ClusterMap, by process: SimulatedProcess)
    func stopped(_ process: SimulatedProcess)
    /// A map was made, in a traced run.
    func made(_ map: ClusterMap, after old: ClusterMap)
    func linkUp(_ peer: NodeID, at process: SimulatedProcess)
    /// A member's timer, every 10 ms.
    func tick(_ process: SimulatedProcess)

    // MARK: Planned moves

    /// Sets or clears the node that is fed beside the shard's standby.
    func setCandidate(_ node: NodeID?, of shard: ShardID, at process: SimulatedProcess)
    /// True if the node has everything of the shard, and nothing is acknowledged that it does not have.
    func isCaughtUp(_ node: NodeID, with shard: ShardID, at process: SimulatedProcess) -> Bool
    /// Calls to the shard's entities are refused from now on.
    func hold(_ shard: ShardID, at process: SimulatedProcess)
    /// True if no call to the held shard's entities is in progress.
    func isQuiet(_ shard: ShardID, at process: SimulatedProcess) -> Bool
    func release(_ shard: ShardID, at process: SimulatedProcess)

    // MARK: Faults and the end

    /// The simulation begins.
    func begin()
    /// Injects one of the workload's own faults.
    func makeFault()
    /// True if every copy is complete: the death of any one node loses nothing.
    var isSafe: Bool { get }
    /// Ends all faults.
    func heal()
    /// What is not stable yet; nil if everything is.
    ///
    /// - Parameter mapIsAtRestSince: since then the map is stable, and every member has it.
    func unrest(mapIsAtRestSince: MonotonicTime) -> String?
    /// The invariants when everything is stable.
    func checkEnd()
}

/// Work of a workload at a time of the run.
struct SimulationWork {
    /// For the trace: which kind of work it is.
    var kind: UInt64
    var run: () -> Void
}
