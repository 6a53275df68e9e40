package import ApusCore
import Crypto
import Foundation

/// Session tickets and play grants: what a node gave a client to show at any other node (D6).
///
/// Sealed with AES-256-GCM under a key derived from the cluster key, so every node can read them and
/// nobody else can read or make them. A ticket is the session; a grant is the permission to watch one
/// device for a while, so that a viewer who loses its node need not wait for the device's owner.
package struct TicketSealer: Sendable {
    private let key: SymmetricKey

    /// The longest ticket that is looked at, in bytes.
    package static let byteCountMax = 2048

    /// - Parameter clusterKey: 32 bytes.
    package init(clusterKey: [UInt8]) {
        key = HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: clusterKey), info: Data("apus session tickets".utf8),
            outputByteCount: 32)
    }

    /// A ticket that resumes a session until `expiresAt`, unix seconds, or until its token ends (IV-A6). Throws 10001
    /// where it cannot be sealed.
    package func seal(_ session: Session, expiresAt: Int64) throws(ApusError) -> [UInt8] {
        let expires = min(expiresAt, session.token.expires)
        return try seal(TicketContent(kind: .session, session: session, expires: expires))
    }

    /// The session of a ticket. Throws 12001 where it was not made by this cluster, 12002 where it is too old.
    package func open(_ ticket: [UInt8], wallSeconds: Int64) throws(ApusError) -> Session {
        try openTicket(ticket, wallSeconds: wallSeconds).session
    }

    /// The same, with when the ticket expires, in Unix seconds.
    func openTicket(
        _ ticket: [UInt8], wallSeconds: Int64
    ) throws(ApusError) -> (session: Session, expires: Int64) {
        let content = try read(ticket, as: .session, wallSeconds: wallSeconds)
        return (content.session, content.expires)
    }

    /// A grant for an app of an account to watch a device until `expiresAt`, unix seconds, or until its token ends.
    package func sealGrant(_ session: Session, device: DeviceID, expiresAt: Int64) throws(ApusError) -> [UInt8] {
        var granted = session
        granted.id = ""
        granted.device = device
        granted.allowedDevices = nil
        granted.sinceMilliseconds = 0
        let expires = min(expiresAt, session.token.expires)
        return try seal(TicketContent(kind: .grant, session: granted, expires: expires))
    }

    /// True where the grant lets this session watch this device now.
    package func allows(_ grant: [UInt8], _ session: Session, device: DeviceID, wallSeconds: Int64) -> Bool {
        // The token may name fewer devices than that of the session which was given the grant.
        guard session.allowedDevices?.contains(device) ?? true,
            let content = try? read(grant, as: .grant, wallSeconds: wallSeconds)
        else { return false }
        return content.session.access == session.access && content.session.account == session.account
            && content.session.device == device
    }

    private func seal(_ content: TicketContent) throws(ApusError) -> [UInt8] {
        do {
            let box = try AES.GCM.seal(content.encoded(), using: key)
            guard let combined = box.combined else { throw ApusError(.internalFailure) }
            return Array(combined)
        } catch {
            throw ApusError(.internalFailure, "a ticket cannot be sealed: \(error)")
        }
    }

    private func read(
        _ ticket: [UInt8], as kind: TicketContent.Kind, wallSeconds: Int64
    ) throws(ApusError) -> TicketContent {
        guard ticket.count <= Self.byteCountMax else { throw ApusError(.tokenInvalid, "the ticket is too long") }
        let plain: Data
        do {
            plain = try AES.GCM.open(try AES.GCM.SealedBox(combined: ticket), using: key)
        } catch {
            throw ApusError(.tokenInvalid, "the ticket was not made by this cluster")
        }
        guard let content = TicketContent(decoding: [UInt8](plain)) else {
            throw ApusError(.tokenInvalid, "the ticket was made by another version")
        }
        guard content.kind == kind else { throw ApusError(.tokenInvalid, "the ticket is for something else") }
        guard content.expires > wallSeconds else { throw ApusError(.tokenExpired, "the ticket has expired") }
        return content
    }
}
