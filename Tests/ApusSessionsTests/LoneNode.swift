import ApusCluster
import ApusContract
import ApusCore
import ApusCrypto
import ApusSessions
import ApusStorage
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOPosix
import SwiftProtobuf
import Synchronization

/// A session service with the owners of its identities in one process, without sockets.
struct LoneNode: Sendable {
    /// A session that was opened, with its first link.
    struct Opened: Sendable {
        var session: Session
        var ticket: [UInt8]
        var isConfirmed: Bool
        var link: RecordedLink
    }

    static let camera = DeviceID(unchecked: "cam")
    private static let cluster = ClusterID(unchecked: "home")
    private static let local = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)

    let service: SessionService
    private let view: ClusterView
    private let signer: TokenSigner
    private let entities: EntityRegistry

    /// Identities that are in memory.
    var entityCount: Int { entities.entityCount }

    /// Runs the body with a service that works meanwhile.
    static func with(
        _ configuration: SessionConfiguration = SessionConfiguration(),
        _ body: (LoneNode) async throws -> Void
    ) async throws {
        let key = P256.Signing.PrivateKey()
        let node = try LoneNode(
            configuration, key: key, signer: try TokenSigner(privateKeyPEM: key.pemRepresentation))
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { try await node.service.run() }
            do {
                try await body(node)
            } catch {
                group.cancelAll()
                throw error
            }
            group.cancelAll()
        }
    }

    private init(_ configuration: SessionConfiguration, key: P256.Signing.PrivateKey, signer: TokenSigner) throws {
        self.signer = signer
        let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let dispatcher = NodeDispatcher()
        let none = TransportTLS(authority: .bytes([]), certificateChain: .bytes([]), privateKey: .bytes([]))
        let transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: none),
            identity: Self.local, cluster: Self.cluster, group: MultiThreadedEventLoopGroup.singleton,
            control: dispatcher, media: IdleMediaLanes(), onEvent: { _ in }, logger: log)
        view = ClusterView(local: Self.local, map: Self.map(epoch: 1))
        entities = EntityRegistry(view: view, transport: transport, logger: log)
        dispatcher.connect(entities)
        let records = MemoryRecordStore()
        service = SessionService(
            configuration: configuration, view: view, entities: entities, transport: transport,
            verifier: try TokenVerifier(publicKeyPEM: key.publicKey.pemRepresentation, cluster: Self.cluster),
            sealer: TicketSealer(clusterKey: [UInt8](repeating: 7, count: 32)),
            revocations: RevocationWatch(records: records, log: log), log: log)
        service.register(with: dispatcher, records: records)
    }

    /// The map in which the node owns all, since a number of changes.
    private static func map(epoch: Epoch) -> ClusterMap {
        var map = ClusterMap(cluster: cluster)
        map.revision = UInt64(epoch)
        let address = HostPort(host: "127.0.0.1", port: 1)
        map.members = [
            Member(
                id: local, state: .up, addresses: NodeAddresses(transport: address, clients: address, http: address))
        ]
        map.shards = Array(
            repeating: ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: epoch), count: ShardID.count)
        return map
    }

    /// As if all shards had left and come back: their entities are made anew.
    func changeOwner(epoch: Epoch) { view.update(Self.map(epoch: epoch)) }

    /// Signs in with a token. Throws what the client is told.
    func open(
        _ role: Session.Role, _ name: String, instance: UInt64, isForOneUse: Bool = false
    ) async throws -> Opened {
        let claims = TokenClaims(
            access: AccessID(unchecked: "access-\(name)"), account: AccountID(unchecked: "acme"), role: role,
            device: role == .device ? DeviceID(unchecked: name) : nil,
            issuedAt: Int64(Date().timeIntervalSince1970), lifetime: .seconds(600), cluster: Self.cluster,
            id: isForOneUse ? "token-\(name)" : "token-\(name)-\(instance)", isForOneUse: isForOneUse)
        let link = RecordedLink()
        var hello = ClientHello.with {
            $0.version = 1
            $0.role = role == .device ? .device : .app
            $0.instance = instance
        }
        hello.token = try signer.sign(claims)
        let opened = try await service.open(hello, link: link).get()
        return Opened(session: opened.session, ticket: opened.ticket, isConfirmed: opened.isConfirmed, link: link)
    }

    /// Shows the ticket of a session. Throws what the client is told; nil where the ticket is not valid.
    func resume(_ opened: Opened, _ link: RecordedLink) throws -> OpenedSession? {
        try service.resume(
            ClientHello.with {
                $0.version = 1
                $0.role = opened.session.role == .device ? .device : .app
                $0.instance = opened.session.instance
                $0.ticket = Data(opened.ticket)
            }, link: link)?.get()
    }

    /// The same where the service may ask others before it answers.
    func signIn(_ opened: Opened, _ link: RecordedLink) async throws -> OpenedSession {
        try await service.open(
            ClientHello.with {
                $0.version = 1
                $0.role = opened.session.role == .device ? .device : .app
                $0.instance = opened.session.instance
                $0.ticket = Data(opened.ticket)
            }, link: link
        ).get()
    }
}

/// A socket that notes what it is told, and stays open.
final class RecordedLink: ClientLink {
    private struct State {
        var ended: [ErrorCode] = []
        var confirmedCount = 0
        var heard: [Presence.Online] = []
    }

    private let state = Mutex(State())

    var ended: [ErrorCode] { state.withLock { $0.ended } }
    var confirmedCount: Int { state.withLock { $0.confirmedCount } }
    var heard: [Presence.Online] { state.withLock { $0.heard } }

    func end(_ error: ApusError) { state.withLock { $0.ended.append(error.code) } }
    func confirmed() { state.withLock { $0.confirmedCount += 1 } }
    func presenceChanged(_ device: DeviceID, _ presence: Presence) {
        state.withLock { $0.heard.append(presence.online) }
    }
}
