import ApusCluster
import ApusCore

/// Clients that send entities one request after the other, each until it is answered.
///
/// A request with an id is sent again, through another node, if its answer does not come or is uncertain. One without
/// an id is sent once.
final class EntityClients {
    private struct Client {
        var call: SimulatedCall?
        /// Counts the attempts of all its requests, to match answers to attempts.
        var attempt = 0
        var ask: Int?
    }

    private unowned let world: EntityWorkload
    private var clients: [Client]

    init(world: EntityWorkload) {
        self.world = world
        clients = Array(repeating: Client(), count: world.settings.clientCount)
    }

    /// The first unanswered request; nil if there is none.
    var unanswered: SimulatedCall? { clients.lazy.compactMap(\.call).first }

    func begin() {
        for client in clients.indices { later(client, after: world.simulation.span(300...600)) { $0.next(client) } }
    }

    private func later(_ client: Int, after delay: Duration, _ body: @escaping (EntityClients) -> Void) {
        let work = SimulationWork(kind: 16) { [unowned self] in body(self) }
        world.simulation.later(.work(work), after: delay)
    }

    private func next(_ client: Int) {
        guard !world.simulation.isHealed else { return }
        clients[client].call = makeCall()
        send(client)
    }

    private func makeCall() -> SimulatedCall {
        let simulation = world.simulation
        let entity = world.anyEntity()
        let operation: SimulatedCall.Operation
        switch simulation.below(20) {
        case 0..<10: operation = .change
        case 10: operation = .fail
        case 11..<15:
            operation = .remind(name: "r\(simulation.below(2))", after: Int64(simulation.below(1500)) - 50)
        case 15: operation = .cancelReminder(name: "r\(simulation.below(2))")
        default: operation = .tell(world.anyEntity())
        }
        let hasID = simulation.below(8) > 0
        let number = world.ledger.add(entity, .request(hasID: hasID), operation)
        return SimulatedCall(
            entity: entity, number: number, id: hasID ? RequestID(using: &simulation.random) : nil,
            operation: operation, origin: .tell)
    }

    private func send(_ client: Int) {
        guard let call = clients[client].call else { return }
        clients[client].attempt += 1
        let attempt = clients[client].attempt
        guard let node = world.anyNode() else {
            return later(client, after: world.simulation.span(20...60)) { $0.again(client, attempt) }
        }
        let timeout = world.simulation.span(world.settings.timeout)
        clients[client].ask = world.asks.begin(call, at: node, until: world.simulation.now + timeout) { outcome in
            self.received(outcome, client, attempt)
        }
        later(client, after: timeout) { $0.again(client, attempt) }
    }

    /// The answer to an attempt did not come, or was an error.
    private func again(_ client: Int, _ attempt: Int) {
        guard let call = clients[client].call, clients[client].attempt == attempt else { return }
        if let ask = clients[client].ask { world.asks.end(ask) }
        guard call.id != nil else { return rest(client) }
        send(client)
    }

    private func received(_ outcome: SimulatedOutcome, _ client: Int, _ attempt: Int) {
        guard let call = clients[client].call, clients[client].attempt == attempt else { return }
        switch outcome {
        case .answered(let bytes, let epoch):
            let entity = "\(call.entity) in shard \(call.entity.shard)"
            world.simulation.tell("client \(client): \(call.number) of \(entity) is done under epoch \(epoch)")
            world.ledger.acknowledge(call.number, bytes, epoch: epoch)
        case .threw: world.ledger.threw(call.number)
        case .refused(let error, _):
            world.refusalCount += 1
            world.simulation.tell("client \(client) is refused \(call.number): \(error.code.number)")
            return later(client, after: world.simulation.span(5...60)) { $0.again(client, attempt) }
        }
        rest(client)
    }

    private func rest(_ client: Int) {
        clients[client].call = nil
        clients[client].ask = nil
        later(client, after: world.simulation.span(0...world.settings.pauseMax)) { $0.next(client) }
    }
}
