import ApusCluster
package import ApusContract
package import ApusCore
import Foundation
import Synchronization

// How a session begins and ends at an edge (D6, docs/decisions/7).
//
// A client that opens a second session beside its first, because a node is slow, is not superseded by itself: sessions
// of one instance stand beside each other, and sockets of one session too, until the client closes what it does not
// need.

extension SessionService {
    /// Checks who a client is and makes its session known. Fails with 12001, 12002, 12003, 8023.
    package func open(_ hello: ClientHello, link: any ClientLink) async -> Result<OpenedSession, ApusError> {
        do throws(ApusError) {
            let (identified, ticketExpires) = try identify(hello)
            if let ticketExpires { return .success(try resumed(identified, ticketExpires: ticketExpires, link)) }
            let session = try await admit(identified, link)
            tell(session.id)
            return .success(try opened(session, isConfirmed: true))
        } catch {
            return .failure(error)
        }
    }

    /// Admits a client by its ticket alone, without waiting for anybody; nil where it brings none that is valid for
    /// it, and ``open(_:link:)`` is to judge.
    package func resume(_ hello: ClientHello, link: any ClientLink) -> OpenedSession? {
        guard !hello.ticket.isEmpty, let (session, ticketExpires) = try? ticketed(hello) else { return nil }
        return try? resumed(session, ticketExpires: ticketExpires, link)
    }

    private func resumed(
        _ session: Session, ticketExpires: Int64, _ link: any ClientLink
    ) throws(ApusError) -> OpenedSession {
        let isConfirmed = resume(session, link)
        tell(session.id)
        return try opened(session, isConfirmed: isConfirmed, ticketExpires: ticketExpires)
    }

    /// - Parameter ticketExpires: of the ticket that was shown. A superseded client must not keep its ticket alive, so
    ///   that a session which was not confirmed gets no later one.
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

    /// One more socket of a session that was admitted before, here or at another node. The owner is told later.
    ///
    /// True where the session is here already and was confirmed: no newer client is known since.
    private func resume(_ session: Session, _ link: any ClientLink) -> Bool {
        let (ended, code, isConfirmed): ([any ClientLink], ErrorCode, Bool) = state.withLock { state in
            var entry = state.entries[session.id] ?? Entry(session: session, links: [])
            // Without a socket the session may have been superseded, and nobody was there to be kicked.
            if entry.links.isEmpty { entry.isConfirmed = false }
            var ended: [any ClientLink] = []
            if session.instance == 0 {
                // Nothing says that the two sockets are of one client.
                ended = entry.links
                entry.links = []
            } else if entry.links.count >= configuration.connectionsMax {
                ended = [entry.links.removeFirst()]
            }
            entry.links.append(link)
            entry.session.order = max(entry.session.order, session.order)
            entry.version += 1
            state.entries[session.id] = entry
            return (ended, session.instance == 0 ? .kicked : .linkLost, entry.isConfirmed)
        }
        for link in ended { link.end(ApusError(code, "the session was resumed on another connection")) }
        return isConfirmed
    }

    /// Has the owner admit a new session and give its client a place in the order (IV-A5).
    ///
    /// The session is in the table meanwhile, so that a kick which overtakes the owner's answer finds it.
    private func admit(_ session: Session, _ link: any ClientLink) async throws(ApusError) -> Session {
        state.withLock { state in
            var entry = Entry(session: session, links: [link])
            entry.isOpening = true
            entry.toldVersion = entry.version
            state.entries[session.id] = entry
        }
        do throws(ApusError) {
            var admitted = session
            admitted.order = try await register(session, again: false)
            let isKicked = state.withLock { state in
                let kickedBy = state.entries[session.id]?.kickedBy ?? .none
                state.entries[session.id]?.isOpening = false
                state.entries[session.id]?.session.order = admitted.order
                state.entries[session.id]?.isConfirmed = true
                return kickedBy > admitted.order
            }
            guard !isKicked else { throw ApusError(.kicked) }
            return admitted
        } catch {
            // The owner may have heard of the session, although no answer came: it is told that there is none.
            state.withLock { state in
                state.entries[session.id]?.isOpening = false
                state.entries[session.id]?.isRefused = true
                state.entries[session.id]?.links = []
                state.entries[session.id]?.version += 1
            }
            tell(session.id)
            throw error
        }
    }

    /// The client chose this socket of its session, as its first frame shows: earlier ones end. They are not the
    /// client's any more, and need not wait here until the network says so.
    package func chosen(_ session: Session, link: any ClientLink) {
        let ended: [any ClientLink] = state.withLock { state in
            guard let links = state.entries[session.id]?.links, links.count > 1,
                let index = links.firstIndex(where: { $0 === link })
            else { return [] }
            state.entries[session.id]?.links.removeFirst(index)
            return Array(links[..<index])
        }
        for link in ended { link.end(ApusError(.linkLost, "the client went on over another connection")) }
    }

    /// The socket of a session is gone. One that others of the session stand beside changes nothing.
    package func close(_ session: Session, link: any ClientLink) {
        let isLast = state.withLock { state in
            guard var entry = state.entries[session.id], entry.links.contains(where: { $0 === link }) else {
                return false
            }
            entry.links.removeAll { $0 === link }
            if entry.links.isEmpty { entry.version += 1 }
            state.entries[session.id] = entry
            return entry.links.isEmpty
        }
        if isLast { tell(session.id) }
    }

    // MARK: - Checking

    /// The cluster's time, which tokens, tickets and grants are judged by: this node's own clock may be wrong.
    func wallSeconds() -> Int64 { view.clock.wallSeconds() }

    /// The session of a ticket, with when that expires. Throws 12001 where the ticket is another client's: as a new
    /// client it would supersede the one that is newest.
    private func ticketed(_ hello: ClientHello) throws(ApusError) -> (Session, ticketExpires: Int64) {
        let (opened, expires) = try sealer.openTicket(Array(hello.ticket), wallSeconds: wallSeconds())
        var session = opened
        let role: Session.Role = hello.role == .device ? .device : .app
        guard session.role == role else { throw ApusError(.notAllowed, "the ticket is for another role") }
        guard session.instance == 0 || hello.instance == 0 || session.instance == hello.instance else {
            throw ApusError(.tokenInvalid, "the ticket was given to another client")
        }
        try revocations.check(session)
        if hello.instance != 0 { session.instance = hello.instance }
        return (session, expires)
    }

    private func identify(_ hello: ClientHello) throws(ApusError) -> (Session, ticketExpires: Int64?) {
        let role: Session.Role = hello.role == .device ? .device : .app
        if !hello.ticket.isEmpty {
            do throws(ApusError) {
                let (session, expires) = try ticketed(hello)
                return (session, expires)
            } catch {
                // An old ticket is no shame where a token comes with it.
                guard !hello.token.isEmpty else { throw error }
            }
        }
        guard !hello.token.isEmpty else { throw ApusError(.tokenInvalid, "the hello brings neither token nor ticket") }
        let claims = try verifier.verify(hello.token, wallSeconds: wallSeconds())
        let milliseconds = Int64(Date().timeIntervalSince1970 * 1000)
        var session = try Session(claims: claims, id: Self.newSessionID(), sinceMilliseconds: milliseconds)
        session.instance = hello.instance
        // The verifier's leeway is for clocks; what a token opens ends with it, so that nothing is opened in the
        // leeway.
        guard !session.token.hasEnded(at: wallSeconds()) else { throw ApusError(.tokenExpired) }
        try revocations.check(session)
        guard session.role == role else {
            throw ApusError(.notAllowed, "the token is for role \(session.role.rawValue)")
        }
        return (session, nil)
    }

    private static func newSessionID() -> String {
        String(UInt64.random(in: .min ... .max), radix: 36) + String(UInt64.random(in: .min ... .max), radix: 36)
    }
}
