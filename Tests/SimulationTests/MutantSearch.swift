import Foundation

/// The search for a seed whose run notices a deliberate error.
///
/// It begins at the seed that was the first to notice the error when the tables below were made. A change of the
/// simulation may move it; the search then continues. Each search prints what it found. `APUS_SIM_SEARCH=all` begins at
/// 0, for new tables.
enum MutantSearch {
    /// Errors that few schedules show. Their searches take as many seeds from the table's on as others take from 0 on.
    static let rare: Set<String> = ["votesUnacknowledged", "forgetsRestoring", "renewsWithoutClients"]

    /// The first seed from the table's on for which a run fails; nil if none below `countMax` does.
    static func firstSeed(
        _ mutant: String, from table: [String: UInt64], countMax: UInt64, isCaught: (_ seed: UInt64) -> Bool
    ) -> UInt64? {
        let isFromStart = ProcessInfo.processInfo.environment["APUS_SIM_SEARCH"] == "all"
        let first = isFromStart ? 0 : table[mutant] ?? 0
        let last = rare.contains(mutant) ? first + countMax * (isFromStart ? 10 : 1) : countMax
        let found = first < last ? (first..<last).first(where: isCaught) : nil
        print("\(mutant): \(found.map { "seed \($0)" } ?? "not caught")")
        return found
    }

    /// Errors of the cluster. Seed 0 notices those that are not listed.
    static let cluster: [String: UInt64] = [
        "releasesUnanswered": 2, "declaresUnconfirmed": 3, "echoesUnheard": 1, "probesOnce": 93, "concealsVotes": 165,
        "answersAfterLapse": 165, "countsFewVotes": 79, "votesUnacknowledged": 396, "takesSilenceForYes": 18,
        "joinsAsTwin": 1, "ignoresTwinsLease": 1, "trustsItsAddress": 1, "restoresAnyMap": 6,
    ]

    /// Errors of entities.
    static let entities: [String: UInt64] = [
        "acknowledgesEarly": 5, "answersUnconfirmed": 82, "dropsEpochs": 8, "dropsRemindersAtPromotion": 2,
        "forgetsReminders": 7, "forgetsRequests": 1, "forgetsSecondStandby": 142, "hidesLosses": 3,
        "ignoresVersions": 10, "partsReminders": 3, "repeatsWithoutID": 15, "skipsClaim": 868, "skipsClaimCheck": 12,
        "takesUnknownForRefused": 18, "tellsEarly": 22,
    ]

    /// Errors of calls.
    static let calls: [String: UInt64] = [
        "keepsDeadConnections": 16, "forgetsRestoring": 367, "renewsWithoutClients": 614, "dropsEnds": 3,
        "tellsEarly": 3, "confirmsUnwritten": 7, "dropsEpochs": 3, "dropsRemindersAtPromotion": 2,
        "forgetsClaims": 1, "acknowledgesEarly": 5,
    ]
}
