package import ApusContract
package import ApusCore

/// The last play sessions of one device, as the apps have reported them (IV-G4).
///
/// An account can neither push out the sessions of another one beyond its share, nor change them: a session belongs to
/// the account that reported it first. Sessions of a former account are dropped with the first message that says so.
///
/// Pure: times are passed in.
package struct PlayTable: Sendable {
    package struct Play: Sendable, Hashable {
        package let account: String
        package var report: ClientPlayReport
        package var keptAt: MonotonicTime
    }

    private let sessionsMax: Int
    private let accountSessionsMax: Int
    /// Since when the device's data belongs to its account, in Unix milliseconds.
    private var dataSince: UInt64 = 0
    /// By their last reports, the newest one last.
    private(set) package var plays: [Play] = []

    package init(sessionsMax: Int, accountSessionsMax: Int) {
        (self.sessionsMax, self.accountSessionsMax) = (sessionsMax, accountSessionsMax)
    }

    /// Drops what belongs to a former account.
    ///
    /// - Throws: 8003 if the message itself belongs to a former account.
    package mutating func enter(_ since: UInt64) throws(ApusError) {
        guard since >= dataSince else { throw ApusError(.illegalRelation) }
        if since > dataSince { plays = [] }
        dataSince = since
    }

    /// Keeps a report, and returns the number of sessions that were dropped for it. A report that is older than that of
    /// the same session, or is about a session of another account, changes nothing.
    package mutating func keep(_ report: ClientPlayReport, of account: String, now: MonotonicTime) -> Int {
        if let index = plays.firstIndex(where: { $0.report.session == report.session }) {
            guard plays[index].account == account, plays[index].report.number < report.number else { return 0 }
            plays.remove(at: index)
        }
        plays.append(Play(account: account, report: report, keptAt: now))
        let before = plays.count
        if count(of: account) > accountSessionsMax { dropOldest(of: account) }
        if plays.count > sessionsMax { dropOldest(of: largest) }
        return before - plays.count
    }

    private func count(of account: String) -> Int { plays.count { $0.account == account } }

    private mutating func dropOldest(of account: String) {
        if let index = plays.firstIndex(where: { $0.account == account }) { plays.remove(at: index) }
    }

    /// The account with the most sessions; of several, the one whose session is the oldest.
    private var largest: String {
        var best = (account: "", count: 0)
        for play in plays {
            let count = count(of: play.account)
            if count > best.count { best = (play.account, count) }
        }
        return best.account
    }
}
