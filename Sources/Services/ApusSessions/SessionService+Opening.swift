import ApusCluster
package import ApusContract
package import ApusCore
import Foundation
import Synchronization

// Opening and closing sessions at an edge (D6, docs/decisions/7).
// A client that opens a second session because a node is slow does not supersede itself. Sessions of one instance may
// coexist, and so may sockets of one session, until the client closes those that it does not need.

extension SessionService {
    /// Authenticates a client and registers its session. Fails with 12001, 12002, 12003, 8023, 20011, and with 10007 if
    /// there are too many sessions.
    package func open(_ hello: ClientHello, link: any ClientLink) async -> Result<OpenedSession, ApusError> {
        do throws(ApusError) {
            let (identified, ticketExpires, isForOneUse) = try identify(hello)
            if let ticketExpires {
                if mayBeDisabled(identified) { try await checkDevice(identified) }
                return .success(try resumed(identified, ticketExpires: ticketExpires, link))
            }
            if isForOneUse {
                try await revocations.use(
                    identified.token, instance: identified.instance, wallSeconds: wallSeconds())
            }
            return .success(try opened(try await admit(identified, link), isConfirmed: true))
        } catch {
            return .failure(error)
        }
    }

    /// Opens a session of a browser that has signed in: one for each tab. Fails as ``open(_:link:)``.
    ///
    /// - Parameter instance: the client's random number, which a tab keeps; 0 if it named none.
    package func open(
        signedIn browser: Session, instance: UInt64, link: any ClientLink
    ) async -> Result<OpenedSession, ApusError> {
        do throws(ApusError) {
            guard browser.role == .app || browser.role == .admin else {
                throw ApusError(.notAllowed, "a client of role \(browser.role.rawValue) has no session")
            }
            try checkSignIn(browser)
            var session = browser
            (session.id, session.role, session.instance) = (Self.newSessionID(), .app, instance)
            session.tab = instance == 0 ? .random(in: 1 ... .max) : instance
            session.sinceMilliseconds = Int64(Date().timeIntervalSince1970 * 1000)
            let admitted = try await admit(session, link)
            do throws(ApusError) {
                // The browser may have signed out meanwhile.
                try checkSignIn(admitted)
            } catch {
                close(admitted, link: link)
                throw error
            }
            return .success(try opened(admitted, isConfirmed: true))
        } catch {
            return .failure(error)
        }
    }

    /// Admits a client by its ticket alone, without waiting for another node. Fails with 10007 if there are too many
    /// sessions. Returns nil if it has no valid ticket, or is a device that may be disabled; then call
    /// ``open(_:link:)``.
    package func resume(_ hello: ClientHello, link: any ClientLink) -> Result<OpenedSession, ApusError>? {
        guard !hello.ticket.isEmpty, let (session, ticketExpires) = try? ticketed(hello), !mayBeDisabled(session)
        else { return nil }
        return Result { () throws(ApusError) in try resumed(session, ticketExpires: ticketExpires, link) }
    }

    private func resumed(
        _ session: Session, ticketExpires: Int64, _ link: any ClientLink
    ) throws(ApusError) -> OpenedSession {
        let (isConfirmed, actions) = state.withLock { $0.edge.resumed(session, EdgeLink(socket: link)) }
        perform(actions)
        if case .failure(let error) = isConfirmed { noteRefusal(error) }
        return try opened(session, isConfirmed: try isConfirmed.get(), ticketExpires: ticketExpires)
    }

    /// - Parameter ticketExpires: that of the presented ticket. A superseded client must not extend its ticket, so an
    ///   unconfirmed session gets no later expiry.
    private func opened(
        _ session: Session, isConfirmed: Bool, ticketExpires: Int64 = .max
    ) throws(ApusError) -> OpenedSession {
        let now = wallSeconds()
        var lifetime = session.token.seconds(of: configuration.ticketLifetime, at: now)
        if !isConfirmed { lifetime = min(lifetime, max(0, ticketExpires - now)) }
        let ticket = try sealer.seal(session, expiresAt: now + lifetime)
        return OpenedSession(
            session: session, ticket: ticket, ticketSeconds: UInt32(clamping: lifetime),
            isConfirmed: isConfirmed)
    }

    /// Asks the owner to admit a new session and to assign its client's order (IV-A5).
    private func admit(_ session: Session, _ link: any ClientLink) async throws(ApusError) -> Session {
        if let error = state.withLock({ $0.edge.opening(session, EdgeLink(socket: link)) }) {
            noteRefusal(error)
            throw error
        }
        let answer = await register(session, isAsleep: false, again: false)
        let (opened, actions) = state.withLock { $0.edge.opened(session.id, answer) }
        perform(actions)
        return try opened.get()
    }

    /// Notes that the client chose this socket of its session, as its first frame shows. Earlier sockets end.
    package func chosen(_ session: Session, link: any ClientLink) {
        perform(state.withLock { $0.edge.chosen(session.id, EdgeLink(socket: link)) })
    }

    /// Removes a closed socket. If the session has other sockets, nothing else changes.
    package func close(_ session: Session, link: any ClientLink) {
        perform(state.withLock { $0.edge.closed(session.id, EdgeLink(socket: link)) })
    }

    // MARK: - Authentication

    /// The cluster's time, against which tokens, tickets and grants are checked: this node's own clock may be wrong.
    func wallSeconds() -> Int64 { view.clock.wallSeconds() }

    /// The session of a ticket, and the ticket's expiry. Throws 12001 if the ticket belongs to another client, which
    /// would otherwise supersede the newest one.
    private func ticketed(_ hello: ClientHello) throws(ApusError) -> (Session, ticketExpires: Int64) {
        let (opened, expires) = try sealer.openTicket(Array(hello.ticket), wallSeconds: wallSeconds())
        var session = opened
        let role: Session.Role = hello.role == .device ? .device : .app
        guard session.role == role else { throw ApusError(.notAllowed, "the ticket is for another role") }
        guard session.instance == 0 || hello.instance == 0 || session.instance == hello.instance else {
            throw ApusError(.tokenInvalid, "the ticket was issued to another client")
        }
        try revocations.check(session)
        if hello.instance != 0 { session.instance = hello.instance }
        return (session, expires)
    }

    private func identify(
        _ hello: ClientHello
    ) throws(ApusError) -> (Session, ticketExpires: Int64?, isForOneUse: Bool) {
        let role: Session.Role = hello.role == .device ? .device : .app
        if !hello.ticket.isEmpty {
            do throws(ApusError) {
                let (session, expires) = try ticketed(hello)
                return (session, expires, false)
            } catch {
                // An invalid ticket is not an error if a token comes with it.
                guard !hello.token.isEmpty else { throw error }
            }
        }
        guard !hello.token.isEmpty else { throw ApusError(.tokenInvalid, "the hello has neither token nor ticket") }
        let claims = try verifier.verify(hello.token, wallSeconds: wallSeconds())
        let milliseconds = Int64(Date().timeIntervalSince1970 * 1000)
        var session = try Session(claims: claims, id: Self.newSessionID(), sinceMilliseconds: milliseconds)
        session.instance = hello.instance
        // The verifier's leeway allows for clock differences. What a token opens ends at its expiry, so nothing is
        // opened within the leeway.
        guard !session.token.hasEnded(at: wallSeconds()) else { throw ApusError(.tokenExpired) }
        try revocations.check(session)
        guard session.role == role else {
            throw ApusError(.notAllowed, "the token is for role \(session.role.rawValue)")
        }
        return (session, nil, claims.once ?? false)
    }

    private static func newSessionID() -> String {
        String(UInt64.random(in: .min ... .max), radix: 36) + String(UInt64.random(in: .min ... .max), radix: 36)
    }
}
