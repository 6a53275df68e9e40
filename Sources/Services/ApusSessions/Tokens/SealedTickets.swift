package import ApusCore
import Crypto
import Foundation

/// Session tickets and play grants: what a node gave a client to show at any other node (D6).
///
/// Sealed with AES-256-GCM under a key derived from the cluster key, so every node can read them and
/// nobody else can read or make them. A ticket is the session; a grant is the leave to watch one
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

    private enum Kind: String, Codable { case session, grant }

    private struct Content: Codable {
        var kind: Kind
        var session: String
        var role: String
        var access: String
        var account: String
        var device: String?
        var devices: [String]?
        var since: Int64
        var expires: Int64
    }

    /// A ticket that resumes a session until `expiresAt`, unix seconds.
    package func seal(_ session: Session, expiresAt: Int64) throws(ApusError) -> [UInt8] {
        try seal(
            Content(
                kind: .session, session: session.id, role: session.role.rawValue, access: session.access.rawValue,
                account: session.account.rawValue, device: session.device?.rawValue,
                devices: session.allowedDevices?.map(\.rawValue), since: session.sinceMilliseconds, expires: expiresAt))
    }

    /// The session of a ticket. Throws 12001 where it was not made by this cluster, 12002 where it is too old.
    package func open(_ ticket: [UInt8], wallSeconds: Int64) throws(ApusError) -> Session {
        let content = try read(ticket, as: .session, wallSeconds: wallSeconds)
        guard let access = AccessID(rawValue: content.access), let account = AccountID(rawValue: content.account),
            let role = Session.Role(rawValue: content.role)
        else { throw ApusError(.tokenInvalid) }
        return Session(
            id: content.session, role: role, access: access, account: account,
            device: content.device.flatMap { DeviceID(rawValue: $0) },
            allowedDevices: content.devices?.compactMap { DeviceID(rawValue: $0) }, sinceMilliseconds: content.since)
    }

    /// A grant for an app of an account to watch a device until `expiresAt`, unix seconds.
    package func sealGrant(_ session: Session, device: DeviceID, expiresAt: Int64) throws(ApusError) -> [UInt8] {
        try seal(
            Content(
                kind: .grant, session: "", role: session.role.rawValue, access: session.access.rawValue,
                account: session.account.rawValue, device: device.rawValue, since: 0, expires: expiresAt))
    }

    /// True where the grant lets this session watch this device now.
    package func allows(_ grant: [UInt8], _ session: Session, device: DeviceID, wallSeconds: Int64) -> Bool {
        guard let content = try? read(grant, as: .grant, wallSeconds: wallSeconds) else { return false }
        return content.access == session.access.rawValue && content.account == session.account.rawValue
            && content.device == device.rawValue
    }

    private func seal(_ content: Content) throws(ApusError) -> [UInt8] {
        do {
            let box = try AES.GCM.seal(try JSONEncoder().encode(content), using: key)
            guard let combined = box.combined else { throw ApusError(.internalFailure) }
            return Array(combined)
        } catch {
            throw ApusError(.internalFailure, "a ticket cannot be sealed: \(error)")
        }
    }

    private func read(_ ticket: [UInt8], as kind: Kind, wallSeconds: Int64) throws(ApusError) -> Content {
        guard ticket.count <= Self.byteCountMax else { throw ApusError(.tokenInvalid, "the ticket is too long") }
        let content: Content
        do {
            let plain = try AES.GCM.open(try AES.GCM.SealedBox(combined: ticket), using: key)
            content = try JSONDecoder().decode(Content.self, from: plain)
        } catch {
            throw ApusError(.tokenInvalid, "the ticket was not made by this cluster")
        }
        guard content.kind == kind else { throw ApusError(.tokenInvalid, "the ticket is for something else") }
        guard content.expires > wallSeconds else { throw ApusError(.tokenExpired, "the ticket has expired") }
        return content
    }
}
