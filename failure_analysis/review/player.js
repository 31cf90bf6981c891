// All cameras of a take, frame by frame, with a cursor in the chart below; and every key.
// Frame k is shown by seeking to its middle, (k + 0.5) / fps: never to an edge between two frames.
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
const BAND_PX = 20; // the phases, above the strips
const TITLE_PX = 17; // above every strip
const AXIS_PX = 22; // below the last one
const LEFT_PX = 42; // of the numbers beside the strips
const RIGHT_PX = 18;

export default {
  template: `
    <div class="player">
      <div class="videos" :class="'n' + Math.min(cameras.length, 4)">
        <figure v-for="(camera, i) in cameras" :key="camera.src">
          <video :ref="'video' + i" :src="camera.src" muted playsinline preload="auto"
                 disablepictureinpicture @click="touched($event, camera)"
                 @loadeddata="loaded($event, camera)" @error="failed(camera)"
                 :class="{ marking: role }"></video>
          <img v-if="outline.src && outlined(camera)" class="outline" :src="outline.src" />
          <figcaption>{{ camera.name }}{{ ready[camera.src] ? "" : ": preparing …" }}</figcaption>
        </figure>
        <div v-if="words" class="words">{{ words }}</div>
      </div>
      <div class="transport">
        <span class="play" @click="toggle">{{ playing ? "❚❚" : "▶" }}</span>
        <input class="scrub" type="range" min="0" :max="Math.max(0, count - 1)" :value="frame"
               tabindex="-1" @input="scrubbed" />
        <span class="now" :title="now">{{ now }}</span>
        <span class="clock">{{ clock }}</span>
        <span v-for="name in cameras.length ? roles : []" class="role" :class="{ on: role === name }"
              :title="'Click here, then on the ' + name + ' in a picture: its colour is looked for.'"
              @click="role = role === name ? '' : name">{{ name }}</span>
        <span class="speed" :class="{ other: speed !== 1 }">{{ speed }}×</span>
      </div>
      <div class="signals" v-show="signals">
        <div class="chart" ref="signals"></div>
        <div v-if="left !== null" class="cursor" :style="{ left: left + 'px' }"></div>
      </div>
    </div>`,
  props: {
    uid: String,
    cameras: Array,
    frame_t_s: Array,
    fps: Number,
    message: String,
    keys: Object,
    signals: String,
    roles: Array, // what a click on a picture can name
    outline: Object, // what has the colour clicked on: { camera, frame, src }
    marks: Array, // [from, to, words] in seconds: phases, who drives, what safety did
  },
  emits: ["key", "mark"],
  data: () => ({ frame: 0, playing: false, speed: 1, trouble: "", left: null, role: "", ready: {} }),
  computed: {
    count() {
      return this.frame_t_s.length;
    },
    words() {
      return this.trouble || this.message;
    },
    now() {
      const t_s = this.frame_t_s[this.frame] ?? -1;
      const here = this.marks.filter(([from, to]) => from <= t_s && t_s <= to);
      return here.map(([, , words]) => words).join(", ");
    },
    clock() {
      if (this.count === 0) return "";
      const now = this.frame_t_s[this.frame] ?? 0;
      return `${now.toFixed(2)} s   frame ${this.frame} of ${this.count}`;
    },
  },
  watch: {
    uid() {
      this.playing = false;
      this.trouble = "";
      this.frame = 0;
      this.$nextTick(() => this.place());
    },
    frame_t_s() {
      this.frame = 0;
      this.place();
    },
    signals() {
      this.draw();
    },
  },
  mounted() {
    window.addEventListener("keydown", this.pressed);
    this.watched = new ResizeObserver(() => this.resized());
    this.turn = requestAnimationFrame(this.run);
  },
  unmounted() {
    window.removeEventListener("keydown", this.pressed);
    this.watched.disconnect();
    this.chart?.dispose();
    cancelAnimationFrame(this.turn);
  },
  methods: {
    videos() {
      return this.cameras.flatMap((_, i) => this.$refs["video" + i] ?? []);
    },
    loaded(event, camera) {
      this.ready[camera.src] = true; // a codec that browsers don't play is encoded anew first
      if (!this.playing) event.target.currentTime = (this.frame + 0.5) / this.fps;
      event.target.playbackRate = this.speed;
    },
    failed(camera) {
      fetch(camera.src)
        .then((answer) => (answer.ok ? "this browser can't play it" : answer.text()))
        .then((why) => (this.trouble = `${camera.name}: ${why}`))
        .catch(() => (this.trouble = `${camera.name}: gaploop review isn't running any more`));
    },
    show(frame) {
      this.stop();
      this.frame = Math.min(Math.max(0, frame), Math.max(0, this.count - 1));
      for (const video of this.videos()) video.currentTime = (this.frame + 0.5) / this.fps;
      this.place();
    },
    stop() {
      this.playing = false;
      for (const video of this.videos()) video.pause();
    },
    touched(event, camera) {
      if (!this.role) return this.toggle();
      if (this.playing) this.toggle();
      const { clientWidth, clientHeight, videoWidth, videoHeight } = event.target;
      const scale = Math.min(clientWidth / videoWidth, clientHeight / videoHeight); // contained
      const right = 0.5 + (event.offsetX - clientWidth / 2) / (scale * videoWidth);
      const down = 0.5 + (event.offsetY - clientHeight / 2) / (scale * videoHeight);
      if (right < 0 || right >= 1 || down < 0 || down >= 1) return;
      this.$emit("mark", [this.role, camera.name, this.frame, right, down]);
      this.role = "";
    },
    outlined(camera) {
      const { camera: name, frame } = this.outline;
      return name === camera.name && frame === this.frame && !this.playing;
    },
    toggle() {
      if (this.playing) {
        this.stop();
        this.show(this.frame);
        return;
      }
      if (this.count === 0) return;
      if (this.frame >= this.count - 1) this.show(0);
      this.playing = true;
      this.began = { at: performance.now(), frame: this.frame };
      for (const video of this.videos()) {
        video.playbackRate = this.speed;
        video.play().catch(() => {});
      }
    },
    faster(step) {
      const next = SPEEDS.indexOf(this.speed) + step;
      this.speed = SPEEDS[Math.min(Math.max(0, next), SPEEDS.length - 1)];
      this.began = { at: performance.now(), frame: this.frame };
      for (const video of this.videos()) video.playbackRate = this.speed;
    },
    run() {
      if (this.playing) this.follow();
      this.turn = requestAnimationFrame(this.run);
    },
    follow() {
      const [first, ...others] = this.videos();
      let frame;
      if (first) {
        frame = Math.floor(first.currentTime * this.fps + 0.001);
        for (const other of others) {
          const apart = Math.abs(other.currentTime - first.currentTime);
          if (apart > 1.5 / this.fps && !other.seeking) other.currentTime = first.currentTime;
        }
      } else {
        const passed = (performance.now() - this.began.at) / 1000;
        frame = this.began.frame + Math.floor(passed * this.speed * this.fps);
      }
      this.frame = Math.min(frame, this.count - 1);
      this.place();
      if (first ? first.ended : frame >= this.count) this.stop();
    },
    scrubbed(event) {
      this.show(Number(event.target.value));
    },
    act(what) {
      const acts = {
        toggle: () => this.toggle(),
        start: () => this.show(0),
        end: () => this.show(this.count - 1),
        slower: () => this.faster(-1),
        faster: () => this.faster(1),
      };
      (acts[what] ?? (() => this.show(this.frame + Number(what))))();
    },
    pressed(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const writing = event.target.closest?.("input:not([type=range]), textarea, select");
      if (writing) {
        if (event.key === "Escape" || (event.key === "Enter" && writing.tagName !== "SELECT")) {
          writing.blur();
        }
        return;
      }
      const name = event.shiftKey && event.key.length > 1 ? `Shift+${event.key}` : event.key;
      if (event.key === "Escape") return this.$emit("key", "Escape");
      if (!(name in this.keys)) return;
      event.preventDefault();
      if (this.keys[name]) this.act(this.keys[name]);
      else this.$emit("key", name);
    },
    // The chart: a click goes to that time, a line shows where the video is.
    async draw() {
      const { echarts } = await import("nicegui-echart"); // only now: the list needn't wait for it
      if (!this.$refs.signals) return;
      this.chart ??= this.wired(echarts.init(this.$refs.signals));
      this.options = JSON.parse(this.signals || "{}");
      this.chart.setOption({ ...this.options, grid: this.grids() }, { notMerge: true });
      this.place();
    },
    wired(chart) {
      chart.getZr().on("click", (event) => this.clicked(event));
      this.watched.observe(this.$refs.signals);
      return chart;
    },
    grids() {
      const count = (this.options.grid ?? []).length;
      const room = (this.chart.getHeight() - BAND_PX - AXIS_PX) / Math.max(1, count - 1);
      return Array.from({ length: count }, (_, n) => ({
        outerBoundsMode: "none", // otherwise the strip with the labels is a little narrower
        left: LEFT_PX,
        right: RIGHT_PX,
        top: n === 0 ? 2 : BAND_PX + (n - 1) * room + TITLE_PX,
        height: n === 0 ? BAND_PX - 2 : Math.max(8, room - TITLE_PX - 3),
      }));
    },
    resized() {
      this.chart.resize();
      this.chart.setOption({ grid: this.grids() });
      this.place();
    },
    clicked(event) {
      if (this.count === 0) return;
      const t_s = this.chart.convertFromPixel({ xAxisIndex: 0 }, event.offsetX);
      let frame = this.frame_t_s.findIndex((t) => t > t_s);
      frame = frame < 0 ? this.count - 1 : Math.max(0, frame - 1);
      this.show(frame);
    },
    place() {
      if (!this.chart || !this.options?.grid || this.count === 0) return;
      const t_s = this.frame_t_s[this.frame] ?? 0;
      this.left = this.chart.convertToPixel({ xAxisIndex: 0 }, t_s);
    },
  },
};
