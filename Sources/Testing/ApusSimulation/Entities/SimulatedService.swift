import ApusCluster
import ApusCore

/// A service whose entities run on the simulated cluster, with its own handlers, clients and checks. All entities of
/// the run are its own, and are replicated.
protocol SimulatedService: AnyObject {
    /// The simulation begins.
    func begin()
    /// A node has another map.
    func adopted(_ node: EntityNode)
    func stopped(_ node: EntityNode)
    /// Carries out a message or a reminder of an entity.
    func carryOut(
        _ call: SimulatedCall, _ content: SimulatedContent, _ cell: SimulatedCell, at node: EntityNode
    ) -> SimulatedCell.Machine.Result
    /// The change is confirmed.
    func finished(_ ending: SimulatedEnding, of cell: SimulatedCell, at node: EntityNode)
    /// A node receives a message of an entity.
    func received(_ message: SentMessage, at node: EntityNode)
    /// What is not stable yet after the faults; nil if everything is.
    func unrest() -> String?
    /// The invariants when everything is stable.
    func checkEnd()
}
