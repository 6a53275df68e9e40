import ApusGrammar
import Foundation

struct ChineseTexts: DialogTexts {
    let notUnderstood = "对不起，我没听懂。"
    let tookTooLong = "对不起，用的时间太长了。"
    let nothingHeard = "对不起，我什么都没听到。"
    let help = "你可以说：打开灯、锁上前门、现在几度，或者现在几点。"
    let stopped = "好的。"
    let cancelled = "好的，不做了。"
    let nothingToConfirm = "没有需要确认的事。"
    let nothingToRepeat = "我还没有说过话。"
    let whichArea = "有几个房间叫这个名字。"
    let tooMany = "设备太多了。"

    let noScreen = "我不知道是哪个屏幕。"

    let noTimers = "没有计时器。"
    let noAlarms = "没有闹钟。"
    let noSuchTime = "这个时间已经过了。"
    let tooManyTimers = "计时器太多了。"

    private static let weekdays = ["日", "一", "二", "三", "四", "五", "六"]

    func time(_ now: Int64, _ zone: TimeZone) -> String {
        let time = HomeTime(now, zone)
        return "现在是\(time.hour)点\(time.minuteText)分。"
    }

    func span(_ seconds: Int64) -> String {
        let parts = [(seconds / 3600, "小时"), (seconds / 60 % 60, "分钟"), (seconds % 60, "秒")]
            .filter { $0.0 > 0 }.map { "\($0.0)\($0.1)" }
        return parts.isEmpty ? "0秒" : parts.joined()
    }

    func moment(_ due: Int64, _ now: Int64, _ zone: TimeZone) -> String {
        let (time, today) = (HomeTime(due, zone), HomeTime(now, zone))
        let tomorrow = today.next(zone)
        let day =
            time.isSameDay(as: today)
            ? "今天" : time.isSameDay(as: tomorrow) ? "明天" : "星期\(Self.weekdays[time.weekday])"
        return "\(day)\(time.hour)点\(time.minuteText)分"
    }

    func whichTimer(_ names: [String]) -> String { "有\(names.count)个：\(names.joined(separator: "、"))。哪一个？" }

    func timersLeft(_ left: [(left: Int64, isPaused: Bool)]) -> String {
        "还有\(left.map { span($0.left) + ($0.isPaused ? "（已暂停）" : "") }.joined(separator: "、"))。"
    }

    func timer(_ action: TimerAction, _ name: String) -> String {
        switch action {
        case .set: "好的，\(name)，现在开始。"
        case .alarm: "好的，\(name)的闹钟。"
        case .cancel: "\(name)已取消。"
        case .pause: "\(name)已暂停。"
        case .resume: "\(name)已继续。"
        case .stop: stopped
        }
    }

    func date(_ now: Int64, _ zone: TimeZone) -> String {
        let time = HomeTime(now, zone)
        return "今天是\(time.year)年\(time.month)月\(time.day)日，星期\(Self.weekdays[time.weekday])。"
    }

    func none(_ area: String?) -> String { "\(area ?? "家")里没有这样的设备。" }
    func noSuch(_ name: String, in area: String?) -> String { "\(area ?? "家")里没有\(name)。" }

    func which(_ choices: [(name: String, area: String?)]) -> String {
        let areas = Set(choices.map { $0.area ?? "" })
        let names = choices.map { choice in
            areas.count == choices.count && !areas.contains("") ? "\(choice.area ?? "")的" : choice.name
        }
        return "哪一个：\(names.joined(separator: "还是"))？"
    }

    func cannot(_ name: String) -> String { "\(name)做不到。" }
    func neverByVoice(_ name: String) -> String { "不能用语音控制\(name)。" }

    func confirm(_ intent: VoiceIntent, _ names: [String]) -> String {
        let verb =
            switch intent {
            case .deviceUnlock: "解锁"
            case .deviceOpen, .deviceOn: "打开"
            case .alarmDisarm: "撤防"
            case .deviceOff, .deviceClose: "关闭"
            case .deviceLock: "锁上"
            case .alarmArm: "布防"
            default: "调节"
            }
        return "要\(verb)\(names.joined(separator: "和"))吗？"
    }

    func state(_ intent: VoiceIntent, _ step: DialogStep) -> String {
        switch intent {
        case .deviceOn, .deviceOpen: "打开"
        case .deviceOff, .deviceClose: "关闭"
        case .deviceLock: "锁上"
        case .deviceUnlock: "解锁"
        case .alarmArm: "布防"
        case .alarmDisarm: "撤防"
        default: "调到\(quantity(VoiceControl.What(rawValue: step.what) ?? .position, step.json))"
        }
    }

    func done(_ name: String, _ state: String) -> String { "\(name)已\(state)。" }
    func already(_ name: String, _ state: String) -> String { "\(name)本来就已\(state)。" }
    func sent(_ name: String) -> String { "已通知\(name)，还没有得到确认。" }
    func queued(_ name: String, _ state: String) -> String { "\(name)不在线，上线后会\(state)。" }
    func offline(_ name: String) -> String { "\(name)不在线。" }
    func forbidden(_ name: String) -> String { "你不能控制\(name)。" }
    func failed(_ name: String) -> String { "\(name)没有完成。" }
    func lastKnown(_ name: String, _ state: String) -> String { "\(offline(name))之前：\(state)" }
    func unknown(_ name: String) -> String { "\(name)还没有报告。" }
    func doneAll(_ count: Int, _ state: String) -> String { "好的，\(count)个设备已\(state)。" }

    func directed(_ intent: VoiceIntent, _ device: String, _ other: String) -> String {
        switch intent {
        case .callStart: "正在呼叫\(other)。"
        case .cameraShow: "正在\(device)上显示\(other)。"
        default: stopped
        }
    }

    func reading(_ name: String, _ what: VoiceControl.What, _ value: String) -> String {
        let label =
            switch what {
            case .temperature: "温度"
            case .humidity: "湿度"
            case .battery: "电量"
            case .brightness: "亮度"
            case .volume: "音量"
            case .speed: "风速"
            case .position: "位置"
            case .power, .open, .lock, .alarm: ""
            }
        return "\(name)的\(label)是\(quantity(what, value))。"
    }

    func position(_ what: VoiceControl.What, isOn: Bool) -> String {
        switch what {
        case .lock: isOn ? "锁着" : "没锁"
        case .alarm: isOn ? "布防了" : "撤防了"
        default: isOn ? "开着" : "关着"
        }
    }

    func answer(_ isSo: Bool, _ name: String, _ state: String) -> String { "\(isSo ? "是的" : "不")，\(name)\(state)。" }
    func status(_ name: String, _ state: String) -> String { "\(name)\(state)。" }

    private func quantity(_ what: VoiceControl.What, _ value: String) -> String {
        what == .temperature ? "\(value)度" : "\(value)%"
    }
}
