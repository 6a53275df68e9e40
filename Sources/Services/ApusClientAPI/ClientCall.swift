package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusCluster
package import CoreMetrics

/// Who makes a request, and how: what its handler receives in addition to the message (D17).
package struct ClientCall: Sendable {
    /// Who asks. Over REST it is no session of this node: it lasts for this request and has the id `-`.
    package let session: Session
    /// When the client stops waiting.
    package let deadline: MonotonicTime
    /// Names the request where the client may send it again; nil where it gave none.
    package let request: RequestID?
    /// The connection that events can go over; nil over REST.
    package let connection: (any ClientConnection)?
    /// The span of the client that caused the request; nil where it gave none.
    package let trace: TraceContext?
    /// The kinds of topics that there are.
    let topics: [any ClientTopicKind]

    package init(
        session: Session, deadline: MonotonicTime, request: RequestID? = nil,
        connection: (any ClientConnection)? = nil, trace: TraceContext? = nil, topics: [any ClientTopicKind] = []
    ) {
        (self.session, self.deadline, self.request) = (session, deadline, request)
        (self.connection, self.trace, self.topics) = (connection, trace, topics)
    }

    /// How long the client waits on.
    ///
    /// - Throws: 10005 where it has stopped waiting.
    package func timeLeft() throws(ApusError) -> Duration { try deadline.timeLeft() }

    /// What an entity receives with the request: who asks, and its id, so that a repetition is carried out once.
    package var entityCall: EntityCall {
        var call = EntityCall()
        call.identity = session.access.rawValue
        call.request = request
        return call
    }

    /// The customer that a request names; nil for ``CustomerID/none``. A customer names only itself, an operator any.
    ///
    /// - Throws: 12004 for another customer, 21031 for an invalid name.
    package func customer(named name: String) throws(ApusError) -> CustomerID? {
        guard session.role == .admin || (session.role == .customer && name == session.account.rawValue) else {
            throw ApusError(.notAllowed, "that is another customer")
        }
        return name == CustomerID.none ? nil : try CustomerID(checking: name, "the customer")
    }

    /// The account that a request names, which only an operator may name another than its own. Throws 12004, 21031.
    package func account(named name: String) throws(ApusError) -> AccountID {
        guard !name.isEmpty, name != session.account.rawValue else { return session.account }
        guard session.role == .admin else { throw ApusError(.notAllowed, "that is another account") }
        guard let account = AccountID(rawValue: name) else {
            throw ApusError(.badParameter, "the account is not valid")
        }
        return account
    }
}

extension SessionRecords {
    /// - Throws: 8002 if there is no such customer.
    package func check(_ customer: CustomerID?) async throws(ApusError) {
        guard let customer, try await self.customer(customer) == nil else { return }
        throw ApusError(.targetUnknown, "no such customer")
    }
}

extension Counter {
    /// Counts if the work is refused because of a bound (10007).
    package func countingRefusals<Value>(
        _ work: () async throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        do throws(ApusError) {
            return try await work()
        } catch {
            if error.code == .overloaded { increment() }
            throw error
        }
    }
}

extension Session.Role {
    /// As requests name who may make them.
    package var roles: ClientRoles {
        switch self {
        case .device: .device
        case .app: .app
        case .admin: .admin
        case .customer: .customer
        }
    }
}
