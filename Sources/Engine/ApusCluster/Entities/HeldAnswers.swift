import ApusCore
import DequeModule

/// The answers of one entity that are ready while its node may not answer (``AnswerPermission``), in order.
///
/// When the permission has been away for a while the callers are told that they cannot know the outcome. What their
/// changes tell others waits for the permission or the loss of the shard.
///
/// Isolation: confined to the entity's executor. The entity bounds their number together with that of its messages.
struct HeldAnswers<Content: EntityContent> {
    enum Answer {
        case ending(EntityEnding)
        case repetition(EntityWork<Content>, RequestMemory.Answer)
        /// An ending whose caller waits no longer.
        case effects(EntityEnding)

        func refuse(_ error: ApusError) {
            switch self {
            case .ending(let ending): ending.refuse(error)
            case .repetition(let work, _): work.refuse(error)
            case .effects: break
            }
        }
    }

    /// The error of requests at a node that has had no permission for some time. They were not carried out.
    static var noMajority: ApusError {
        ApusError(.noRoute, "the shard's owner does not hear most of the cluster's nodes; another node may own it")
    }

    /// The error of answers that waited for too long: their changes may stay or not.
    static var outcomeUnknown: ApusError {
        ApusError(.linkLost, "the shard's owner lost most of the cluster's nodes while the message was handled")
    }

    /// The error of answers whose shard left: their changes may be in the shard or not.
    static var shardLost: ApusError {
        ApusError(.linkLost, "the shard left this node while the message was handled")
    }

    private var answers: Deque<Answer> = []

    var count: Int { answers.count }
    var isEmpty: Bool { answers.isEmpty }

    mutating func append(_ answer: Answer) { answers.append(answer) }

    mutating func popFirst() -> Answer? { answers.popFirst() }

    /// The permission has been away for too long.
    mutating func refuseCallers() {
        let all = answers
        answers = []
        for answer in all {
            answer.refuse(Self.outcomeUnknown)
            switch answer {
            case .ending(let ending), .effects(let ending): answers.append(.effects(ending))
            case .repetition: break
            }
        }
    }

    /// The shard left.
    mutating func refuseAll() {
        let all = answers
        answers = []
        for answer in all { answer.refuse(Self.shardLost) }
    }
}
