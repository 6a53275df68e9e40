import Synchronization

/// What the services of a node offer each other, by type: a protocol that its user declares, or the service itself.
///
/// A service that needs another one names the type, and not who provides it. A protocol is declared by the target that
/// uses it, so that the target of the provider may import it, and not the reverse.
///
/// It keeps what is provided, and services keep it: they live as long as their process.
///
/// Isolation: any thread. A `Mutex` guards the table; a look costs a lock and a look in a dictionary.
package final class ServicePorts: Sendable {
    private let provided = Mutex<[ObjectIdentifier: [any Sendable]]>([:])

    package init() {}

    /// Provides a value to all who ask for its type. Several may be provided of a type.
    package func provide<Port: Sendable>(_ value: Port, as type: Port.Type = Port.self) {
        provided.withLock { $0[ObjectIdentifier(type), default: []].append(value) }
    }

    /// All that is provided of a type, in the order in which it was provided.
    package func all<Port: Sendable>(_ type: Port.Type) -> [Port] {
        provided.withLock { $0[ObjectIdentifier(type)] ?? [] }.compactMap { $0 as? Port }
    }

    /// The only value that is provided of a type.
    ///
    /// - Throws: 10018 if there is none, or more than one: the services of the node are wrong, or in the wrong order.
    package func one<Port: Sendable>(_ type: Port.Type) throws(ApusError) -> Port {
        let found = all(type)
        guard found.count == 1 else {
            throw ApusError(.internalFailure, "\(found.count) services provide \(type); one is expected")
        }
        return found[0]
    }
}
