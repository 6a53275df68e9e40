import ApusCluster
import ApusCore

/// What runs on the simulated cluster besides membership and ownership, as far as these are concerned.
///
/// The simulation tells it what happens to the processes, and asks it where a node's shell asks its other parts.
protocol SimulationWorkload: AnyObject {
    /// A process read the map for the first time, and is about to join.
    func opened(_ process: SimulatedProcess)
    /// A process that was opened goes by this map from now on.
    func adopted(_ map: ClusterMap, by process: SimulatedProcess)
    func stopped(_ process: SimulatedProcess)
    /// A map was made, in a run whose story is told.
    func made(_ map: ClusterMap, after old: ClusterMap)
    func linkUp(_ peer: NodeID, at process: SimulatedProcess)
    /// A member's timer, every 10 ms.
    func tick(_ process: SimulatedProcess)

    // MARK: Planned moves

    /// The node is to be fed beside the shard's standby, or none is any more.
    func setCandidate(_ node: NodeID?, of shard: ShardID, at process: SimulatedProcess)
    /// The node has all of the shard, and nothing is acknowledged that it has not.
    func isCaughtUp(_ node: NodeID, with shard: ShardID, at process: SimulatedProcess) -> Bool
    /// Calls to the shard's entities are refused from now on.
    func hold(_ shard: ShardID, at process: SimulatedProcess)
    /// No call to the held shard's entities is under way.
    func isQuiet(_ shard: ShardID, at process: SimulatedProcess) -> Bool
    func release(_ shard: ShardID, at process: SimulatedProcess)

    // MARK: Faults and the end

    /// The simulation begins.
    func begin()
    /// One of the faults that only this knows.
    func makeFault()
    /// Every copy is made: the death of any one node loses nothing.
    var isSafe: Bool { get }
    /// From now on nothing goes wrong.
    func heal()
    /// What is not at rest yet; nil if all is.
    ///
    /// - Parameter mapIsAtRestSince: the map is where it should be, and every member has it.
    func unrest(mapIsAtRestSince: MonotonicTime) -> String?
    /// What must hold when all is at rest.
    func checkEnd()
}

/// Something that a workload does at a moment of the run.
struct SimulationWork {
    /// For the trace: which kind of work it is.
    var kind: UInt64
    var run: () -> Void
}
