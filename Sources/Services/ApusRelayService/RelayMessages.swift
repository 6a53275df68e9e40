import ApusCluster
package import ApusCore
package import ApusRelay
package import ApusTraversal
package import ApusWire
package import Foundation
import SwiftProtobuf

// The messages between relays, and their encoding (proto/apus/relay.proto).

extension RelayWireMirrored: NodeMessage {
    package typealias Reply = RelayWireMirroredTaken
    package static var method: UInt16 { 0x0051 }
}

extension RelayWireClaim: NodeMessage {
    package typealias Reply = RelayWireClaimed
    package static var method: UInt16 { 0x0052 }
}

extension RelayWireMovedAway: NodeMessage {
    package typealias Reply = RelayWireMovedAwayTaken
    package static var method: UInt16 { 0x0053 }
}

extension RelayWireReport: NodeMessage {
    package typealias Reply = RelayWireReportTaken
    package static var method: UInt16 { 0x0054 }
}

/// The maximum number of elements in one message of any sender (D13).
private enum WireBound {
    static let changes = 4_096
    static let peers = 256
    static let relayed = 2
    static let endpoints = 64
    static let users = RelayRoster.usersMax
    static let addresses = RelayRoster.addressesMax
    /// A DNS name with brackets and a port.
    static let advertisedByteCount = 262
}

extension TransportAddress {
    /// The encoded address, followed by its port.
    package var wire: Data { Data(bytes + [UInt8(truncatingIfNeeded: port >> 8), UInt8(truncatingIfNeeded: port)]) }

    /// Decodes an address; nil if the length is not valid.
    package init?(wire: Data) {
        guard wire.count == 6 || wire.count == 18 else { return nil }
        let bytes = Array(wire)
        let port = UInt16(bytes[bytes.count - 2]) << 8 | UInt16(bytes[bytes.count - 1])
        self.init(bytes: bytes.dropLast(2), port: port)
    }
}

extension AllocationMirror {
    /// The encoded mirror.
    package var wire: RelayWireMirror {
        .with {
            $0.ticket = Data(ticket.bytes)
            $0.username = username
            $0.relayed = relayed.map(\.wire)
            $0.remainingMs = UInt64(max(0, remaining.milliseconds))
            $0.permissions = permissions.map(\.wire)
            $0.channels = channels.map { channel in
                .with {
                    $0.number = UInt32(channel.number)
                    $0.peer = channel.peer.wire
                }
            }
        }
    }

    /// Throws 10001 if the message is not valid.
    package init(_ wire: RelayWireMirror) throws(ApusError) {
        guard let ticket = MobilityTicket(bytes: wire.ticket), wire.relayed.count <= WireBound.relayed,
            wire.permissions.count <= WireBound.peers, wire.channels.count <= WireBound.peers,
            wire.username.utf8.count <= RelayCredentials.usernameByteCountMax
        else { throw ApusError(.malformed) }
        let channels = try wire.channels.map { channel throws(ApusError) in
            guard let number = UInt16(exactly: channel.number) else { throw ApusError(.malformed) }
            return AllocationMirror.Channel(number: number, peer: try Self.address(channel.peer))
        }
        self.init(
            ticket: ticket, username: wire.username,
            relayed: try wire.relayed.map { bytes throws(ApusError) in try Self.address(bytes) },
            remaining: .milliseconds(Int64(min(wire.remainingMs, 86_400_000))),
            permissions: try wire.permissions.map { bytes throws(ApusError) in try Self.address(bytes) },
            channels: channels)
    }

    private static func address(_ bytes: Data) throws(ApusError) -> TransportAddress {
        guard let address = TransportAddress(wire: bytes) else { throw ApusError(.malformed) }
        return address
    }
}

extension RelayWireMirrored {
    /// Encodes the changes, without `replacing`.
    package init(_ changes: [MirrorChange]) {
        self.init()
        for change in changes {
            switch change {
            case .kept(let mirror, _): mirrors.append(mirror.wire)
            case .ended(let ticket): ended.append(Data(ticket.bytes))
            }
        }
    }

    /// Throws 10001 if the message is not valid.
    package func changes() throws(ApusError) -> [MirrorChange] {
        guard mirrors.count + ended.count <= WireBound.changes else { throw ApusError(.malformed) }
        var changes: [MirrorChange] = []
        for bytes in ended {
            guard let ticket = MobilityTicket(bytes: bytes) else { throw ApusError(.malformed) }
            changes.append(.ended(ticket))
        }
        for mirror in mirrors { changes.append(.kept(try AllocationMirror(mirror), replacing: nil)) }
        return changes
    }
}

extension RelayReport {
    /// The encoded report.
    package var wire: RelayWireReport {
        .with {
            $0.endpoints = endpoints.map { endpoint in
                .with {
                    $0.transport = UInt32(endpoint.transport.rawValue)
                    $0.address = endpoint.address.wire
                }
            }
            $0.domain = domain
            $0.draining = isDraining
            $0.users = usage.map(\.user)
            $0.counts = usage.map { UInt32(clamping: $0.allocations) }
            $0.whole = isWhole
            $0.advertised = advertised?.description ?? ""
            $0.addresses = addresses.map(\.wire)
            $0.relays = relays.map(\.wire)
        }
    }

    /// Throws 10001 if the message is not valid. Endpoints of unknown kinds are ignored.
    package init(_ wire: RelayWireReport) throws(ApusError) {
        guard wire.endpoints.count <= WireBound.endpoints, wire.users.count == wire.counts.count,
            wire.users.count <= WireBound.users, wire.domain.utf8.count <= 253,
            wire.addresses.count <= WireBound.addresses, wire.relays.count <= WireBound.addresses,
            wire.advertised.utf8.count <= WireBound.advertisedByteCount
        else { throw ApusError(.malformed) }
        let endpoints = wire.endpoints.compactMap { endpoint -> RelayEndpoint? in
            guard let number = UInt8(exactly: endpoint.transport),
                let transport = RelayFlow.Transport(rawValue: number),
                let address = TransportAddress(wire: endpoint.address)
            else { return nil }
            return RelayEndpoint(transport: transport, address: address)
        }
        self.init(
            endpoints: endpoints, domain: wire.domain, isDraining: wire.draining,
            usage: zip(wire.users, wire.counts).map { RelayUsage(user: $0, allocations: Int($1)) },
            isWhole: wire.whole, advertised: HostPort(wire.advertised),
            addresses: try Self.hosts(wire.addresses), relays: try Self.hosts(wire.relays))
    }

    private static func hosts(_ wire: [Data]) throws(ApusError) -> [TransportAddress] {
        try wire.map { bytes throws(ApusError) in
            guard let address = TransportAddress(wire: bytes) else { throw ApusError(.malformed) }
            return address.host
        }
    }
}
