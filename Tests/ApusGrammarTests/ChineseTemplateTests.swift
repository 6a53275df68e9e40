import ApusCore
import ApusGrammar
import Testing

@Suite("The Chinese templates")
struct ChineseTemplateTests {
    static let grammar = Result { try GrammarHome.grammar(.chinese) }

    static let cases = [
        VoiceCase(.deviceOn, "name=lamp-1", "打开台灯", "请帮我打开台灯", "把台灯打开", "台灯打开", "开一下台灯"),
        VoiceCase(.deviceOn, "name=lamp-4|lamp-5", "打开落地灯"),
        VoiceCase(.deviceOn, "area=area-2 name=lamp-2", "打开客厅的吸顶灯", "把客厅里的吸顶灯打开"),
        VoiceCase(
            .deviceOn, "area=area-2 kind=light", "打开客厅的灯", "打开 客厅 的 灯", "把客厅的灯打开", "打开客厅所有的灯", "客厅的灯全打开"),
        VoiceCase(.deviceOn, "kind=light scope=everywhere", "打开全屋的灯", "把所有房间的灯都打开"),
        VoiceCase(.deviceOn, "area=area-9 kind=light", "开灯", "打开这里的灯", "把灯打开"),
        VoiceCase(.deviceOff, "name=socket-1", "关闭咖啡机", "关掉咖啡机吧", "把咖啡机关上"),
        VoiceCase(.deviceOff, "area=area-1 kind=light", "关闭厨房的灯", "把厨房的灯关掉", "关掉厨房里的灯"),
        VoiceCase(.deviceOff, "kind=climate scope=everywhere", "关闭全家的空调"),
        VoiceCase(.deviceOff, "area=area-9 kind=light", "关灯", "关掉灯"),
        VoiceCase(
            .deviceSet, "name=lamp-1 value=50 what=brightness", "把台灯调到百分之五十", "台灯亮度调到50%", "将台灯的亮度设为五十", "把台灯调到一半"),
        VoiceCase(.deviceSet, "area=area-2 kind=light value=30 what=brightness", "把客厅的灯调到百分之三十", "客厅灯亮度设置为30%"),
        VoiceCase(.deviceSet, "name=lamp-1 value=100 what=brightness", "把台灯调到最亮"),
        VoiceCase(.deviceSet, "name=climate-1 value=26 what=temperature", "把空调调到二十六度", "空调温度设为26℃", "把空调的温度调到２６度"),
        VoiceCase(.deviceSet, "name=climate-1 value=20.5 what=temperature", "空调调到二十点五度", "空调调到20.5度"),
        VoiceCase(.deviceSet, "area=area-3 value=20 what=temperature", "把卧室温度调到二十度"),
        VoiceCase(.deviceSet, "area=area-9 value=22 what=temperature", "温度调到二十二度", "把温度设为22度"),
        VoiceCase(.deviceSet, "name=speaker-1 value=15 what=volume", "把音箱的音量调到十五", "音箱声音调到百分之十五"),
        VoiceCase(.deviceSet, "name=cover-1 value=50 what=position", "把卧室窗帘打开到百分之五十", "卧室窗帘开到50%"),
        VoiceCase(.deviceSet, "name=fan-1 value=70 what=speed", "把风扇调到百分之七十"),
        VoiceCase(.deviceGet, "name=garage-1 state=open", "车库门开着吗", "车库门现在开着吗", "车库门有没有开", "车库门是不是开着"),
        VoiceCase(.deviceGet, "name=lock-1 state=closed", "大门关了吗", "大门关好了没有"),
        VoiceCase(.deviceGet, "name=lock-2 state=locked", "后门锁了吗", "后门有没有锁好", "后门锁好了吗"),
        VoiceCase(.deviceGet, "name=socket-1 state=on", "咖啡机开着吗"),
        VoiceCase(.deviceGet, "name=socket-1 state=off", "咖啡机关了吗"),
        VoiceCase(.deviceGet, "state=armed", "布防了吗", "警报开着吗"),
        VoiceCase(.deviceGet, "area=area-1 what=temperature", "厨房多少度", "厨房现在几度", "厨房的温度是多少", "厨房里热不热"),
        VoiceCase(.deviceGet, "area=area-9 what=temperature", "现在多少度", "室内温度是多少"),
        VoiceCase(.deviceGet, "name=lock-2 what=battery", "后门的电量是多少", "后门电量还有多少"),
        VoiceCase(.deviceOpen, "name=garage-1", "打开车库门", "请把车库门打开", "车库门打开", "升起车库门"),
        VoiceCase(.deviceOpen, "area=area-2 kind=cover", "打开客厅的窗帘", "把客厅窗帘拉开"),
        VoiceCase(.deviceOpen, "kind=cover scope=everywhere", "打开全屋的窗帘"),
        VoiceCase(.deviceClose, "name=garage-1", "关闭车库门", "把车库门关上", "车库门关上", "放下车库门"),
        VoiceCase(.deviceClose, "area=area-2 kind=cover", "拉上客厅的窗帘"),
        VoiceCase(.deviceLock, "name=lock-1", "锁上大门", "把大门锁好", "请锁大门", "反锁大门"),
        VoiceCase(.deviceUnlock, "name=lock-2", "解锁后门", "打开后门的锁", "把后门解锁", "后门开锁"),
        VoiceCase(.alarmArm, "", "布防", "开启布防", "打开警报", "启动安防系统"),
        VoiceCase(.alarmArm, "mode=away", "离家布防", "外出模式布防", "我出门了"),
        VoiceCase(.alarmArm, "mode=home", "在家布防"),
        VoiceCase(.alarmArm, "mode=night", "睡眠模式布防", "夜间布防"),
        VoiceCase(.alarmDisarm, "", "撤防", "解除布防", "关闭警报", "解除警报"),
        VoiceCase(.callStart, "contact=contact-2", "呼叫奶奶", "给奶奶打电话", "打电话给奶奶", "我想和奶奶视频"),
        VoiceCase(.callStart, "contact=contact-1", "呼叫门口", "接通门口", "跟门口说话"),
        VoiceCase(.callAnswer, "", "接听", "接听电话", "接电话", "接通"),
        VoiceCase(.callDecline, "", "拒绝来电", "拒接", "不接电话", "别接"),
        VoiceCase(.callEnd, "", "挂断", "挂断电话", "结束通话", "挂了吧", "再见"),
        VoiceCase(.cameraShow, "name=camera-2", "看看花园", "显示花园的画面", "看一下花园的摄像头", "打开花园监控"),
        VoiceCase(.cameraShow, "name=camera-2 screen=screen-1", "在厨房屏幕上看花园", "把花园的画面投到厨房屏幕"),
        VoiceCase(.cameraShow, "name=camera-3", "看看一号摄像机", "看看1号摄像机"),
        VoiceCase(.cameraShow, "name=camera-1", "谁在门口", "门口是谁"),
        VoiceCase(.timerSet, "minutes=5", "五分钟后提醒我", "5分钟后叫我", "设一个五分钟的定时器", "倒计时五分钟", "定时五分钟"),
        VoiceCase(.timerSet, "hours=1 minutes=30", "一小时三十分钟后提醒我", "一个半小时后提醒我"),
        VoiceCase(.timerSet, "minutes=30", "半小时后提醒我", "设个半小时的定时器"),
        VoiceCase(.timerSet, "hours=2", "两小时后提醒我", "两个小时以后叫我"),
        VoiceCase(.timerSet, "minutes=15", "一刻钟后提醒我"),
        VoiceCase(.timerCancel, "", "取消定时器", "停止倒计时", "把定时器取消", "删除这个定时器"),
        VoiceCase(.timerCancel, "count=all", "取消所有定时器"),
        VoiceCase(.timerQuery, "", "定时器还有多久", "还剩多少时间", "倒计时还剩几分钟", "还有多久"),
        VoiceCase(.timerPause, "", "暂停定时器", "把倒计时暂停一下", "定时器暂停", "暂停计时"),
        VoiceCase(.timerResume, "", "继续定时器", "恢复倒计时", "定时器继续", "继续计时"),
        VoiceCase(.alarmSet, "hour=7", "七点叫醒我", "设一个七点的闹钟", "7点叫我起床", "定个七点的闹钟"),
        VoiceCase(.alarmSet, "day=tomorrow hour=7 minute=30 period=am", "明天早上七点半叫醒我", "设个明天早上七点半的闹钟"),
        VoiceCase(.alarmSet, "hour=6 minute=50", "六点五十叫我", "六点五十分叫我"),
        VoiceCase(.alarmSet, "hour=6 minute=5", "六点零五分叫我"),
        VoiceCase(.alarmSet, "day=monday hour=8", "星期一八点叫我", "周一八点叫我"),
        VoiceCase(.alarmSet, "hour=2 period=pm", "下午两点叫我"),
        VoiceCase(.alarmCancel, "", "取消闹钟", "把闹钟关掉", "删除闹钟", "不用叫我起床了"),
        VoiceCase(.alarmCancel, "day=tomorrow", "取消明天的闹钟", "明天别叫我"),
        VoiceCase(.alarmCancel, "count=all", "取消所有闹钟"),
        VoiceCase(.timeGet, "", "现在几点了", "几点了", "现在几点", "请问现在几点", "报时"),
        VoiceCase(.dateGet, "", "今天几号", "今天星期几", "今天是几月几号", "今天的日期是多少"),
        VoiceCase(.volumeSet, "value=40", "音量调到百分之四十", "把音量设为40", "把声音调到四十", "音量40%"),
        VoiceCase(.volumeSet, "value=0", "静音"),
        VoiceCase(.volumeSet, "value=100", "音量调到最大"),
        VoiceCase(.volumeUp, "", "大声一点", "声音大一点", "音量调高", "把声音调大", "声 音 大 一 点"),
        VoiceCase(.volumeDown, "", "小声一点", "声音小一点", "音量调低", "太吵了"),
        VoiceCase(.deviceRaise, "name=lamp-1 what=brightness", "台灯亮一点", "把台灯调亮", "把台灯的亮度调亮一点"),
        VoiceCase(.deviceLower, "name=lamp-1 what=brightness", "台灯暗一点", "把台灯调暗一些"),
        VoiceCase(.deviceRaise, "area=area-9 kind=light what=brightness", "太暗了", "再亮一点", "把灯调亮一点"),
        VoiceCase(.deviceLower, "area=area-1 kind=light what=brightness", "把厨房的灯调暗"),
        VoiceCase(.deviceRaise, "name=climate-1 what=temperature", "把空调调高一点", "空调的温度升高"),
        VoiceCase(.deviceRaise, "area=area-9 what=temperature", "太冷了", "暖和一点", "温度调高"),
        VoiceCase(.deviceLower, "area=area-1 what=temperature", "厨房温度调低一点"),
        VoiceCase(.stop, "", "停", "停止", "别说了", "安静"),
        VoiceCase(.repeatReply, "", "再说一遍", "重复一遍", "没听清", "你说什么"),
        VoiceCase(.help, "", "帮助", "你会什么", "我可以说什么", "怎么用"),
        VoiceCase(.yes, "", "是", "好的", "没问题", "确定"),
        VoiceCase(.no, "", "不", "不要", "不是", "不对"),
        VoiceCase(.cancel, "", "取消", "算了", "没事", "不用了"),
    ]

    @Test("Sentences have their meaning", arguments: cases)
    func meanings(test: VoiceCase) throws {
        let grammar = try Self.grammar.get()
        for text in test.texts { #expect(grammar.best(text, VoiceCase.context) == test.summary, "\(text)") }
    }

    @Test("Each intent has four sentences in the tests", arguments: VoiceIntent.allCases)
    func coverage(intent: VoiceIntent) {
        #expect(Self.cases.filter { $0.intent == intent }.reduce(0) { $0 + $1.texts.count } >= 4)
    }

    @Test(
        "Near misses have no meaning",
        arguments: [
            "锁上自行车", "锁上车库", "锁上台灯", "锁上", "解锁所有门", "解锁台灯", "打开浴室的灯", "打开", "打开所有灯", "关闭所有的灯",
            "关闭一切", "打开地下室的空调", "把台灯", "打开台灯台灯", "台灯调到百分之一百四十", "把台灯调到", "空调调到九十度", "空调调到四度",
            "把地下室温度调到二十度", "台灯开着门吗", "风扇锁了吗", "呼叫爷爷", "呼叫", "给打电话", "看看厨房", "看看台灯", "在音箱上看花园",
            "布防台灯", "定时", "五后提醒我", "零分钟后提醒我", "分钟后提醒我", "五百小时后提醒我", "二十五点叫醒我", "七点六十分叫我", "叫醒我",
            "音量调到一百零一", "音量调到", "现在几", "停止车库门", "取消大门", "是不是", "请", "台灯", "厨房", "升起台灯", "打开窗户",
        ])
    func misses(text: String) throws {
        let grammar = try Self.grammar.get()
        #expect(grammar.all(text, VoiceCase.context) == [])
    }

    @Test("Without an area in the context, lights of no area are not meant")
    func noArea() throws {
        let grammar = try Self.grammar.get()
        for text in ["开灯", "关灯", "现在多少度", "温度调到二十度"] {
            #expect(grammar.all(text) == [], "\(text)")
            #expect(!grammar.all(text, VoiceCase.context).isEmpty, "\(text)")
        }
    }

    @Test("The templates have the intents and slots of the English ones")
    func names() throws {
        let (chinese, english) = (try Self.grammar.get(), try GrammarHome.grammar(.english))
        #expect(chinese.templates.intentNames == english.templates.intentNames)
        let slots = Set(chinese.sample(count: 3000, seed: 5).flatMap { $0.slots.map(\.name) })
        #expect(slots.isSubset(of: VoiceSlot.allCases.map(\.rawValue)))
    }
}
