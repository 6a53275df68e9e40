package import ApusCore
import ApusCrypto
import Foundation

/// Session tickets and play grants, which a client presents at any node (D6).
/// They are sealed with AES-256-GCM under a key that is derived from the cluster key, so only nodes of the cluster can
/// read or create them. A ticket contains the session. A grant is the permission to watch one device for a while, so
/// that a viewer who loses its node need not wait for the device's owner.
package struct TicketSealer: Sendable {
    private let key: SymmetricKey
    /// The other key whose tickets are accepted while the cluster's key is changed.
    private let other: SymmetricKey?

    /// The maximum length of a ticket, in bytes.
    package static let byteCountMax = 2048

    /// - Parameter keys: the cluster's keys. The first one seals; what either sealed is accepted.
    package init(keys: ClusterKeys) {
        key = Self.derive(keys.current)
        other = keys.other.map { Self.derive($0) }
    }

    /// - Parameter clusterKey: 32 bytes.
    package init(clusterKey: [UInt8]) { self.init(keys: ClusterKeys(current: clusterKey)) }

    private static func derive(_ key: [UInt8]) -> SymmetricKey {
        HKDF.deriveKey(
            inputKeyMaterial: key, info: Data("apus session tickets".utf8), outputByteCount: 32)
    }

    /// Seals a ticket that resumes a session until `expiresAt`, in Unix seconds, or until its token expires (IV-A6).
    /// Throws 10001 if it cannot be sealed.
    package func seal(_ session: Session, expiresAt: Int64) throws(ApusError) -> [UInt8] {
        let expires = min(expiresAt, session.token.expires)
        return try seal(TicketContent(kind: .session, session: session, expires: expires))
    }

    /// The session of a ticket. Throws 12001 if this cluster did not create it, 12002 if it has expired.
    package func open(_ ticket: [UInt8], wallSeconds: Int64) throws(ApusError) -> Session {
        try openTicket(ticket, wallSeconds: wallSeconds).session
    }

    /// The session of a ticket, and the ticket's expiry in Unix seconds.
    func openTicket(
        _ ticket: [UInt8], wallSeconds: Int64
    ) throws(ApusError) -> (session: Session, expires: Int64) {
        let content = try read(ticket, as: .session, wallSeconds: wallSeconds)
        return (content.session, content.expires)
    }

    /// Seals the cookie of a browser's sign-in, for as long as the session's token is valid.
    package func sealSignIn(_ session: Session) throws(ApusError) -> [UInt8] {
        try seal(TicketContent(kind: .signIn, session: session, expires: session.token.expires))
    }

    /// The session of a browser's sign-in. Throws 12001 if this cluster did not create it, 12002 if it has expired.
    package func openSignIn(_ cookie: [UInt8], wallSeconds: Int64) throws(ApusError) -> Session {
        let session = try read(cookie, as: .signIn, wallSeconds: wallSeconds).session
        guard session.signIn != 0 else { throw ApusError(.tokenInvalid) }
        return session
    }

    /// Seals a grant for an app of an account to watch a device until `expiresAt`, in Unix seconds, or until its token
    /// expires.
    ///
    /// - Parameter peers: of a grant for the channel of a call: the devices to which the account needs a right.
    package func sealGrant(
        _ session: Session, device: DeviceID, peers: [DeviceID]? = nil, expiresAt: Int64
    ) throws(ApusError) -> [UInt8] {
        var granted = session
        granted.id = ""
        granted.device = device
        granted.allowedDevices = peers
        granted.sinceMilliseconds = 0
        let expires = min(expiresAt, session.token.expires)
        return try seal(TicketContent(kind: .grant, session: granted, expires: expires))
    }

    /// True if the grant permits this session to watch this device now.
    package func allows(_ grant: [UInt8], _ session: Session, device: DeviceID, wallSeconds: Int64) -> Bool {
        // This session's token may name fewer devices than the token of the session that received the grant.
        guard session.allowedDevices?.contains(device) ?? true,
            let content = self.grant(grant, of: session, device: device, wallSeconds: wallSeconds)
        else { return false }
        return content.allowedDevices == nil
    }

    /// The devices to which the account needs a right for the channel of a call; nil if the grant does not permit it.
    package func peers(
        of grant: [UInt8], _ session: Session, device: DeviceID, wallSeconds: Int64
    ) -> [DeviceID]? {
        self.grant(grant, of: session, device: device, wallSeconds: wallSeconds)?.allowedDevices
    }

    private func grant(_ grant: [UInt8], of session: Session, device: DeviceID, wallSeconds: Int64) -> Session? {
        guard let content = try? read(grant, as: .grant, wallSeconds: wallSeconds),
            content.session.access == session.access, content.session.account == session.account,
            content.session.device == device
        else { return nil }
        return content.session
    }

    func seal(_ content: TicketContent) throws(ApusError) -> [UInt8] {
        do {
            return try AES.GCM.seal(content.encoded(), using: key)
        } catch {
            throw ApusError(.internalFailure, "a ticket cannot be sealed: \(error)")
        }
    }

    func read(
        _ ticket: [UInt8], as kind: TicketContent.Kind, wallSeconds: Int64
    ) throws(ApusError) -> TicketContent {
        guard ticket.count <= Self.byteCountMax else { throw ApusError(.tokenInvalid, "the ticket is too long") }
        guard
            let plain = (try? AES.GCM.open(ticket, using: key))
                ?? other.flatMap({ try? AES.GCM.open(ticket, using: $0) })
        else { throw ApusError(.tokenInvalid, "the ticket was not issued by this cluster") }
        guard let content = TicketContent(decoding: plain) else {
            throw ApusError(.tokenInvalid, "the ticket was issued by another version")
        }
        guard content.kind == kind else { throw ApusError(.tokenInvalid, "the ticket is of another kind") }
        guard content.expires > wallSeconds else { throw ApusError(.tokenExpired, "the ticket has expired") }
        return content
    }
}
