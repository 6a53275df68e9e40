package import ApusContract
package import ApusCore
package import ApusWire
import SwiftProtobuf

/// The requests and topics that a node offers to clients (D17).
///
/// Services register their requests and topics while the node is made; the native protocol, WebSocket and REST read the
/// same table afterwards. An edge knows no request by name.
package struct ClientAPI: Sendable {
    /// The longest request where a service names no other bound, in bytes.
    package static let byteCountMax = 16 << 10

    /// By number.
    package private(set) var operations: [ClientOperation] = []
    package private(set) var topics: [any ClientTopicKind] = []
    /// Events, by number, with the full names of their messages.
    package private(set) var events: [ClientEventKind] = []
    /// `FileDescriptorSet`s in base64, with the messages of all operations and events.
    package private(set) var schemas: [String] = []
    private var byNumber: [UInt16: Int] = [:]
    private var byName: [String: Int] = [:]

    package init() {}

    /// Throws 10004 for a number that no service has.
    package func operation(number: UInt16) throws(ApusError) -> ClientOperation {
        guard let index = byNumber[number] else {
            throw ApusError(.methodUnknown, "method \(number) is not known here")
        }
        return operations[index]
    }

    /// Throws 10004 for a name that no service has.
    package func operation(named name: String) throws(ApusError) -> ClientOperation {
        guard let index = byName[name] else {
            throw ApusError(.methodUnknown, "there is no request of this name")
        }
        return operations[index]
    }

    package func topicKind(named name: String) -> (any ClientTopicKind)? { topics.first { $0.name == name } }

    package func event(number: UInt32) -> ClientEventKind? { events.first { $0.info.number == number } }

    /// Adds a request.
    ///
    /// - Parameters:
    ///   - byteCountMax: the longest request, in bytes of either encoding.
    ///   - orderKey: requests of one connection with the same key are carried out one after the other, in the order in
    ///     which they came; nil: concurrently with all others.
    ///   - body: runs in a task of the connection, which is cancelled when the client cancels or goes away.
    /// - Precondition: no other request has its number, name or path.
    package mutating func on<M: ClientRequestMessage & BoundedMessage>(
        _ type: M.Type, byteCountMax: Int = ClientAPI.byteCountMax,
        orderKey: @escaping @Sendable (M) -> String? = { _ in nil },
        _ body: @escaping @Sendable (M, ClientCall) async throws(ApusError) -> M.Reply
    ) {
        let operation = ClientOperation(type, byteCountMax: byteCountMax, orderKey: orderKey, body)
        let info = operation.info
        precondition(byNumber[info.number] == nil, "the request number \(info.number) is registered twice")
        precondition(byName[info.name] == nil, "the request \(info.name) is registered twice")
        byNumber[info.number] = operations.count
        byName[info.name] = operations.count
        operations.append(operation)
    }

    /// Adds a kind of topic with the events that its topics have.
    ///
    /// - Precondition: no other kind has its name, and no other event the number of one of its events.
    package mutating func add(_ kind: some ClientTopicKind) {
        precondition(topicKind(named: kind.name) == nil, "the topics \(kind.name) are registered twice")
        topics.append(kind)
        for event in kind.events { add(event) }
    }

    /// Adds an event that goes to identities.
    package mutating func add(_ event: ClientEventKind) {
        precondition(self.event(number: event.info.number) == nil, "the event \(event.info.number) is registered twice")
        events.append(event)
    }

    /// Adds the messages of a service, as `scripts/generate` writes them.
    package mutating func addSchemas(_ base64: String) { schemas.append(base64) }
}
