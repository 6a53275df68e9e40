import ApusCore
import ApusDialogs
import SwiftProtobuf

/// A deliberate error of a room, or of what asks it.
enum ArbitrationMutant: String, CaseIterable, Sendable {
    case none
    /// A louder device that is late listens without asking the winner.
    case doesNotAsk
    /// A device that has heard a sentence yields nevertheless.
    case yieldsAlways
    /// A device that has yielded listens when its message comes late.
    case forgetsYield
    /// A loser listens as well.
    case ignoresLoss
}

/// Devices of one room that hear one phrase, each with a dialog, over a network that loses, doubles and delays. Each
/// winner hears the sentence that follows. The room may die with its node.
struct ArbitrationWorld {
    private enum Letter {
        /// The node of a device asks the room.
        case ask(Int)
        case decided(Int, ArbitrationStateMachine.Answer)
        case yield(Int, winner: Int)
        case yielded(Int, isFree: Bool)
        case listen(Int)
        case sentence(Int)
        case timeout(Int)
        case look
        case kill
    }

    private struct Device {
        let wake: ArbitrationStateMachine.Wake
        let heardMs: Int64
        var dialog = DialogStateMachine(restoring: DialogState(), DialogConfiguration())
        /// Its node has an answer, or has given up waiting.
        var isAnswered = false
        var isWaiting = false
        var isAlone = false
    }

    private let mutant: ArbitrationMutant
    private var random: SeededRandom
    private var room = ArbitrationStateMachine(windowMs: 150)
    private var devices: [Device] = []
    private var letters: [(at: Int64, number: Int, letter: Letter)] = []
    private var letterCount = 0
    private var now: Int64 = 1_000
    private let loss: Double
    private let delayMax: Int64
    private(set) var violations: [String] = []
    /// The devices whose sentence has begun.
    private var sentences: [Int] = []
    private var isRoomLost = false
    private(set) var revisionCount = 0
    private(set) var aloneCount = 0
    private(set) var deathCount = 0
    /// The loudest one of those that came in time has won.
    private(set) var isLoudest = false

    init(seed: UInt64, mutant: ArbitrationMutant = .none) {
        self.mutant = mutant
        random = SeededRandom(seed: seed)
        loss = [0, 0, 0.1][Int(random.next() % 3)]
        delayMax = [5, 60, 400][Int(random.next() % 3)]
        for index in 0..<Int(random.next() % 4 + 2) {
            let wake = ArbitrationStateMachine.Wake(
                device: "device-\(index)", id: "wake-\(index)", signalToNoise: Int32(random.next() % 3000), energy: 0,
                endedMs: now + number(0...40))
            devices.append(Device(wake: wake, heardMs: now + number(40...200)))
        }
        for index in devices.indices {
            later(devices[index].heardMs - now, .ask(index))
            later(devices[index].heardMs - now + 500, .timeout(index))
        }
        if chance(0.15) { later(number(50...600), .kill) }
    }

    // MARK: - The run

    mutating func run() -> [String] {
        while let next = letters.popLast() {
            now = max(now, next.at)
            take(next.letter)
        }
        checkEnd()
        return violations
    }

    private mutating func chance(_ share: Double) -> Bool { random.nextUnit() < share }

    private mutating func number(_ range: ClosedRange<Int64>) -> Int64 {
        range.lowerBound + Int64(random.next() % UInt64(range.upperBound - range.lowerBound + 1))
    }

    private mutating func later(_ delay: Int64, _ letter: Letter) {
        letterCount += 1
        let at = now + max(0, delay)
        let index = letters.lastIndex { $0.at > at }.map { $0 + 1 } ?? 0
        letters.insert((at, letterCount, letter), at: index)
    }

    private mutating func send(_ letter: Letter) {
        for _ in 0..<(chance(0.1) ? 2 : 1) where !chance(loss) { later(number(1...delayMax), letter) }
    }

    private mutating func take(_ letter: Letter) {
        switch letter {
        case .ask(let index):
            // The message takes its time, and is repeated.
            for delay in [Int64(0), 200] where delay == 0 || chance(0.3) {
                for _ in 0..<(chance(0.1) ? 2 : 1) where !chance(loss) {
                    later(delay + number(1...delayMax), .decided(index, .unknown))
                }
            }
        case .decided(let index, .unknown): atRoom(index)
        case .decided(let index, let answer): decided(index, answer)
        case .yield(let index, let winner): yield(index, winner)
        case .yielded(let index, let isFree):
            let answer = room.revised(devices[index].wake.id, isFree: isFree, at: now)
            // The node has the winner's word.
            if isFree, answer == .wins || answer == .unknown || isRoomLost { listen(index) }
        case .listen(let index): listens(index)
        case .sentence(let index): sentence(index)
        case .timeout(let index):
            guard !devices[index].isAnswered else { return }
            (devices[index].isAnswered, devices[index].isAlone) = (true, true)
            aloneCount += 1
            listen(index)
        case .look: look()
        case .kill:
            deathCount += 1
            isRoomLost = true
            room = ArbitrationStateMachine(windowMs: 150)
        }
    }

    private mutating func atRoom(_ index: Int) {
        let others = devices.map(\.wake.device).filter { $0 != devices[index].wake.device }
        let answer = room.heard(devices[index].wake, others: others, at: now)
        devices[index].isWaiting = true
        if case .waits = answer { return later(10, .look) }
        answerWaiting()
    }

    private mutating func look() {
        answerWaiting()
        if devices.contains(where: \.isWaiting) { later(10, .look) }
    }

    private mutating func answerWaiting() {
        for index in devices.indices where devices[index].isWaiting {
            let answer = room.answer(to: devices[index].wake.id, at: now)
            if case .waits = answer { continue }
            devices[index].isWaiting = false
            if answer != .unknown { send(.decided(index, answer)) }
        }
    }

    private mutating func decided(_ index: Int, _ answer: ArbitrationStateMachine.Answer) {
        guard !devices[index].isAnswered else { return }
        devices[index].isAnswered = true
        switch answer {
        case .wins: listen(index)
        case .loses: if mutant == .ignoresLoss { listen(index) }
        case .revises(let winner):
            revisionCount += 1
            guard let other = devices.firstIndex(where: { $0.wake.id == winner.id }) else { return }
            if mutant == .doesNotAsk { return later(1, .yielded(index, isFree: true)) }
            send(.yield(index, winner: other))
        case .waits, .unknown: break
        }
    }

    private mutating func yield(_ index: Int, _ winner: Int) {
        var actions: [DialogStateMachine.Action] = []
        let id = devices[winner].wake.id
        if mutant == .forgetsYield, !devices[winner].dialog.isListening(id),
            !devices[winner].dialog.state.turns.contains(where: { $0.heard == id })
        {
            return send(.yielded(index, isFree: true))
        }
        let isFree = devices[winner].dialog.yield(id, at: now, &actions)
        send(.yielded(index, isFree: isFree || mutant == .yieldsAlways))
    }

    private mutating func listen(_ index: Int) {
        for _ in 0..<(chance(0.1) ? 2 : 1) { later(number(1...delayMax), .listen(index)) }
    }

    private mutating func listens(_ index: Int) {
        var actions: [DialogStateMachine.Action] = []
        let listening = DialogListening.with { ($0.id, $0.language) = (devices[index].wake.id, "en") }
        devices[index].dialog.listen(listening, at: now, &actions)
        if !actions.isEmpty { later(number(100...900), .sentence(index)) }
    }

    /// The device has heard the sentence.
    private mutating func sentence(_ index: Int) {
        var actions: [DialogStateMachine.Action] = []
        let begin = DialogBegin.with {
            ($0.id, $0.text, $0.language, $0.heard) = ("sentence-\(index)", "lamp", "en", devices[index].wake.id)
            $0.plan.steps = [DialogStep()]
        }
        if !devices[index].dialog.begin(begin, at: now, &actions).isOver { sentences.append(index) }
    }

    private mutating func checkEnd() {
        for device in devices where !device.isAnswered { violations.append("\(device.wake.device) waits for ever") }
        // A room that is lost, or does not answer, leaves the devices alone.
        let isAlone = isRoomLost || devices.contains(where: \.isAlone)
        if sentences.count > 1, !isAlone { violations.append("\(sentences.count) devices answer") }
        guard sentences.count == 1, !isAlone else { return }
        let loudest = devices.indices.max { devices[$1].wake.isLouder(than: devices[$0].wake) }
        isLoudest = sentences[0] == loudest
    }
}
